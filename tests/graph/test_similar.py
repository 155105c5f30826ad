from marius_py.graph.similar import similar_names


def test_similar_names():
    assert similar_names("Oslo", ["Osla", "Bergen"]) == ["Osla"]
    assert similar_names("Olso", ["Osaka", "Oslo"]) == ["Oslo"]
    assert similar_names("/m/01abc", ["/m/01abd", "/m/99xyz"]) == ["/m/01abd"]
    assert similar_names("x", []) == []
