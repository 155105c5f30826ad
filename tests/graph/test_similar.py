import difflib

import pytest

from marius_py.graph.similar import similar_names


def test_similar_names():
    assert similar_names("Oslo", ["Osla", "Bergen"]) == ["Osla"]
    assert similar_names("Olso", ["Osaka", "Oslo"]) == ["Oslo"]
    assert similar_names("/m/01abc", ["/m/01abd", "/m/99xyz"]) == ["/m/01abd"]
    assert similar_names("x", []) == []


def test_a_name_without_its_type_is_found_whatever_the_length_of_the_type():
    typed = ["user/7", "movie/7", "movie/17", "superuser::27", "7 days"]
    assert similar_names("7", typed) == ["user/7", "movie/7"]
    assert similar_names("ASTHMA", ["Disease::asthma", "Disease::postasthma"]) == ["Disease::asthma"]
    assert similar_names("straße", ["city/STRASSE", "STRASSE"]) == ["city/STRASSE", "STRASSE"]
    assert similar_names("a", [f"{kind}/a" for kind in "wxyz"]) == ["w/a", "x/a", "y/a"]


@pytest.mark.parametrize(
    "wanted",
    [
        "<http://kg.org/Persn_77>",
        "<http://kg.org/Preson_77>",
        "<http//kg.org/person_777>",
        "http://kg.org/Person_77",
    ],
)
def test_of_many_names_that_begin_alike_few_are_compared_at_length(monkeypatch, wanted):
    compared = []
    matches = difflib.get_close_matches

    def counting(word, possibilities, *rest):
        compared.append(len(possibilities))
        return matches(word, possibilities, *rest)

    monkeypatch.setattr(difflib, "get_close_matches", counting)
    names = [f"<http://kg.org/Person_{number}>" for number in range(2000)]
    meant = "<http://kg.org/Person_777>" if "777" in wanted else "<http://kg.org/Person_77>"
    assert similar_names(wanted, names)[0] == meant
    assert compared[0] <= 200
