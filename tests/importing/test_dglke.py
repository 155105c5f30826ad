"""DGL-KE's files become graphs with the same triples and runs with the same scores."""

import json
import re
import tracemalloc
from functools import partial

import numpy as np
import pytest

import marius_py
from marius_py import cli
from marius_py.commands import importing
from marius_py.errors import ConfigError, FormatError, StorageError
from marius_py.graph import open_graph
from marius_py.importing import dglke_graph, dglke_run, dglke_triples, files
from marius_py.importing.files import has_repeats
from marius_py.importing.mappings import read_mapping
from marius_py.storage.weighted import weights_of
from marius_py.verify import is_sound, verify
from tests.importing.peers import dglke_score, write_dglke

MODELS = ("TransE", "TransE_l1", "TransE_l2", "DistMult", "ComplEx", "RESCAL", "RotatE")


def named(graph, split):
    nodes, relations = graph.node_names(), graph.relation_names()
    with graph.edges() as store:
        return sorted((nodes[h], relations[r], nodes[t]) for h, r, t in store.read(split).tolist())


@pytest.mark.parametrize(
    ("format", "delimiter"),
    [
        ("built_in", "\t"),
        ("raw_udd_hrt", "\t"),
        ("raw_udd_trh", ","),
        ("udd_hrt", "|"),
        ("udd_htr", ";"),
        ("udd_rth", "\t"),
        ("udd_thr", "\t"),
        ("raw_udd_rht", "\t"),
    ],
)
def test_triples(tmp_path, format, delimiter):
    data, _, names, relations, triples, *_ = write_dglke(
        tmp_path, "DistMult", format=format, delimiter=delimiter
    )
    graph = dglke_graph(
        data / "train.txt",
        tmp_path / "g",
        valid=data / "valid.txt",
        test=data / "test.txt",
        format=format,
        delimiter=delimiter,
        partitions=2,
    )
    assert sorted(graph.node_names()) == sorted(names)
    assert graph.relation_names() == relations
    for split, wanted in triples.items():
        assert named(graph, split) == sorted(wanted)


def test_a_delimiter_is_one_character(tmp_path):
    data, *_ = write_dglke(tmp_path, "DistMult")
    with pytest.raises(ConfigError, match=r"^delimiter is 'ab'; allowed: one character$"):
        dglke_graph(data / "train.txt", tmp_path / "g", delimiter="ab")


def test_edge_importance_is_read_on_request(tmp_path):
    data, _, _, _, triples, *_ = write_dglke(tmp_path, "DistMult", format="udd_hrt")
    lines = (data / "train.txt").read_text().splitlines()
    options = {"format": "udd_hrt", "split": (1, 0, 0)}
    with pytest.raises(FormatError, match=r"fewer than 4 columns .* fourth has weights, as importance"):
        dglke_graph(data / "train.txt", tmp_path / "g", importance=True, **options)
    (data / "train.txt").write_text("".join(f"{line}\t{i / 2} \n" for i, line in enumerate(lines)))
    graph = dglke_graph(data / "train.txt", tmp_path / "g", **options)
    assert named(graph, "train") == sorted(triples["train"])
    assert graph.mean_weight is None
    words = [f"input.train={data / 'train.txt'}", f"graph={tmp_path / 'h'}", "input.split=[1,0,0]"]
    assert cli.import_(["from=dglke", "format=udd_hrt", "importance=true", *words]) == 0
    weighted = open_graph(tmp_path / "h")
    with weighted.edges() as store:
        rows = store.read("train", weights=True)
    nodes, relations = weighted.node_names(), weighted.relation_names()
    found = {
        (nodes[h], relations[r], nodes[t]): w
        for (h, r, t, _), w in zip(rows.tolist(), weights_of(rows), strict=True)
    }
    assert found == {edge: i / 2 for i, edge in enumerate(triples["train"])}
    with pytest.raises(ConfigError, match="importance is of from=dglke"):
        importing.parse(["from=pbg", "importance=true", *words])


@pytest.mark.parametrize("model", MODELS)
def test_scores(tmp_path, model):
    data, save, names, relations, _, entity, relation = write_dglke(tmp_path, model)
    graph = dglke_graph(data / "train.txt", tmp_path / "g", split=(1, 0, 0), partitions=4)
    folder = dglke_run(save, graph, tmp_path / "run", data=data)
    gamma = 12.0 if model.startswith(("TransE", "RotatE")) else 0.0
    with marius_py.load(folder) as run:
        edges = [(h, r, t) for h in (0, 4, 8) for r in range(3) for t in range(9)]
        ours = run.score([(names[h], relations[r], names[t]) for h, r, t in edges])
        wanted = [dglke_score(model, entity[h], relation[r], entity[t]) for h, r, t in edges]
        np.testing.assert_allclose(ours + gamma, wanted, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(run.embedding(names[5]), entity[5].astype(np.float32))
        assert run.result["imported"]["gamma"] == (gamma or None)
        # Ranking agrees with the formula on both ends.
        for side in ("head", "tail"):
            known = {"relation": relations[1], "tail" if side == "head" else "head": names[2]}
            answers = [getattr(one, side) for one in run.predict(**known, k=9)]
            order = sorted(
                range(9),
                key=lambda i: (
                    -dglke_score(
                        model,
                        entity[i if side == "head" else 2],
                        relation[1],
                        entity[2 if side == "head" else i],
                    )
                ),
            )
            assert answers == [names[i] for i in order]


def test_the_command(tmp_path, capsys):
    data, save, names, *_ = write_dglke(tmp_path, "RotatE")
    words = ["from=dglke", f"input.train={data / 'train.txt'}", f"input.test={data / 'test.txt'}"]
    words += [f"checkpoint={save}", f"graph={tmp_path / 'my graph'}", f"output={tmp_path / 'run'}"]
    assert cli.main(["import", *words]) == 0
    assert is_sound(verify(tmp_path / "run"))
    assert cli.evaluate([f"run={tmp_path / 'run'}"]) == 0
    assert cli.neighbors([str(tmp_path / "run"), "--node", names[0], "-k", "2"]) == 0
    assert "entity" in capsys.readouterr().out
    more = ["training.epochs=1", "negatives.count=5", "training.valid_every=0"]
    assert cli.train([f"output={tmp_path / 'run'}", "resume=true", *more]) == 0
    assert cli.import_(words) == 2
    assert "not empty" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="holds a prepared graph already"):
        dglke_graph(data / "train.txt", tmp_path / "my graph")


@pytest.mark.parametrize("model", ["TransR", "SimplE", "ConvE"])
def test_what_has_no_equal(tmp_path, model):
    data, save, *_ = write_dglke(tmp_path, model)
    graph = dglke_graph(data / "train.txt", tmp_path / "g", split=(1, 0, 0))
    with pytest.raises(ConfigError, match=f"model {model} of DGL-KE has no equal here; allowed: TransE, "):
        dglke_run(save, graph, tmp_path / "run", data=data)


def test_newer_configurations(tmp_path):
    """A later version dumps all arguments under their own names."""
    data, save, *_ = write_dglke(tmp_path, "RotatE")
    values = json.loads((save / "config.json").read_text())
    values |= {"model_name": values.pop("model"), "hidden_dim": values.pop("emb_size")}
    values |= {"emp_file": values.pop("emap_file")}
    (save / "config.json").write_text(json.dumps(values))
    graph = dglke_graph(data / "train.txt", tmp_path / "g", split=(1, 0, 0))
    with marius_py.load(dglke_run(save, graph, tmp_path / "run", data=data)) as run:
        assert run.settings["model.decoder"]["phase_scale"] == pytest.approx(np.pi * 3 / 14)


@pytest.mark.parametrize(("hidden", "allowed"), [(6, True), (3, True), (12, False), (None, True)])
def test_the_width_is_that_of_the_configuration(tmp_path, hidden, allowed):
    data, save, *_ = write_dglke(tmp_path, "DistMult")
    change(save, emb_size=hidden)
    graph = dglke_graph(data / "train.txt", tmp_path / "g", split=(1, 0, 0))
    if allowed:
        assert dglke_run(save, graph, tmp_path / "run", data=data).is_dir()
        return
    with pytest.raises(FormatError, match=r"6 wide; DistMult .* 12 needs 12 or 24"):
        dglke_run(save, graph, tmp_path / "run", data=data)


@pytest.mark.parametrize("dtype", [">f4", "f2", ">f8"])
def test_other_floats(tmp_path, dtype):
    data, save, names, _, _, entity, _ = write_dglke(tmp_path, "DistMult")
    np.save(save / "mine_DistMult_entity.npy", np.asfortranarray(entity.astype(dtype)))
    graph = dglke_graph(data / "train.txt", tmp_path / "g", split=(1, 0, 0))
    with marius_py.load(dglke_run(save, graph, tmp_path / "run", data=data)) as run:
        np.testing.assert_array_equal(run.embedding(names[3]), entity[3].astype(dtype).astype(np.float32))


def test_floats_too_large_are_counted(tmp_path, caplog):
    data, save, *_ = write_dglke(tmp_path, "DistMult")
    rows = np.ones((9, 6))
    rows[::2] = 1e300
    np.save(save / "mine_DistMult_entity.npy", rows)
    relations = np.load(save / "mine_DistMult_relation.npy")
    relations[1, 2] = np.nan
    np.save(save / "mine_DistMult_relation.npy", relations)
    graph = dglke_graph(data / "train.txt", tmp_path / "g", split=(1, 0, 0), partitions=3)
    run = dglke_run(save, graph, tmp_path / "run", data=data, memory_bytes=1)
    with marius_py.load(run) as opened:
        odd = [name for name in graph.node_names() if not np.isfinite(opened.embedding(name)).all()]
        relation = graph.relation_names()[np.flatnonzero(np.isnan(opened.relations()[1]).any(axis=1))[0]]
    assert [text for text in caplog.messages if "NaN" in text] == [
        f"{count} hold a NaN or an infinity, the first that of {name!r}; they are taken over as they are: no "
        "such node or relation is given as an answer, and training on ends where it meets one"
        for count, name in (
            (f"1 of {len(relations)} relation rows", relation), ("5 of 9 embeddings", odd[0])
        )
    ]  # fmt: skip


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def archive(path):
    with path.open("wb") as file:
        np.savez(file, a=np.zeros(3))


def unclose(path):
    path.write_bytes(path.read_bytes().replace(b"}", b" ", 1))


def write_entities(text, data, save):
    (data / "entities.dict").write_text(text)


def change(save, **values):
    path = save / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


DAMAGE = {
    "half a table": (lambda data, save: cut(save / "mine_RotatE_entity.npy"), "half-written"),
    "no table": (lambda data, save: (save / "mine_RotatE_relation.npy").unlink(), "relation.npy is missing"),
    "pickled": (
        lambda data, save: np.save(save / "mine_RotatE_entity.npy", np.array([{}], object)),
        "half-written",
    ),
    "an archive": (
        lambda data, save: archive(save / "mine_RotatE_entity.npy"),
        "half-written: it should hold the embeddings of entities",
    ),
    "one dimension": (
        lambda data, save: np.save(save / "mine_RotatE_entity.npy", np.zeros(9)),
        r"holds float64 \(9,\)",
    ),
    "rows lack": (
        lambda data, save: np.save(save / "mine_RotatE_entity.npy", np.zeros((8, 6), np.float32)),
        r"entity.npy has shape \(8, 6\).*needs \(9, 6\)",
    ),
    "a wide relation": (
        lambda data, save: np.save(save / "mine_RotatE_relation.npy", np.zeros((3, 6), np.float32)),
        r"relation.npy has shape \(3, 6\).*needs \(3, 3\)",
    ),
    "an odd width": (
        lambda data, save: np.save(save / "mine_RotatE_entity.npy", np.zeros((9, 5), np.float32)),
        "RotatE needs an even width",
    ),
    "a damaged header": (
        lambda data, save: unclose(save / "mine_RotatE_entity.npy"),
        "half-written",
    ),
    "half an archive": (
        lambda data, save: (save / "mine_RotatE_entity.npy").write_bytes(b"PK\x03\x04"),
        "half-written",
    ),
    "no columns": (
        lambda data, save: np.save(save / "mine_RotatE_entity.npy", np.zeros((9, 0))),
        "at least one a row",
    ),
    "another emb_size": (
        lambda data, save: change(save, emb_size=6),
        r"6 wide; RotatE with emb_size \(hidden_dim\) 6 needs 12",
    ),
    "a broken emb_size": (lambda data, save: change(save, emb_size=3.7), "emb_size is 3.7; allowed: a whole"),
    "no end of emb_size": (
        lambda data, save: change(save, emb_size=None, hidden_dim=float("inf")),
        "hidden_dim is inf; allowed: a whole number from 1",
    ),
    "a long emb_size": (lambda data, save: change(save, emb_size=10**400), r"emb_size .* 10{70,90}… needs"),
    "no finite gamma": (lambda data, save: change(save, gamma=float("nan")), "gamma is nan; allowed: a fin"),
    "a long gamma": (lambda data, save: change(save, gamma=10**400), "gamma is 10*…; allowed: a finite"),
    "a low gamma": (lambda data, save: change(save, gamma=-2), "above -2, and emb_size"),
    "half a configuration": (lambda data, save: cut(save / "config.json"), "half-written"),
    "no configuration": (lambda data, save: (save / "config.json").unlink(), "config.json is missing"),
    "no model": (lambda data, save: change(save, model=None), "names no dataset, or no model"),
    "a path": (lambda data, save: change(save, dataset="../mine"), "parts of the tables' names"),
    "no gamma": (lambda data, save: change(save, gamma=None), "need gamma, above -2, and emb_size"),
    "no mapping": (lambda data, save: (data / "entities.dict").unlink(), "say where: entities=FILE"),
    **{
        f"a mapping with {what}": (partial(write_entities, text), message)
        for what, text, message in (
            ("holes", "0\ta\n2\tb\n", "should be 0 to 1, each"),
            ("no numbers", "a\t0\n", "line 1: the number is 'a', which is no whole number"),
            ("no lines", "", "entities.dict is empty; it should hold a line 'number, name' each"),
            ("no name", "0\ta\n1\t\n", "line 2: the name of number 1 is ''"),
            ("no first number", "\ta\n", "line 1: the number is ''"),
            ("one column", "0 a\n", "a line holds a number, the delimiter and a name"),
            ("a blank name", "1\t \n0\ta\n", "line 1: the name of number 1 is ''"),
            ("one name twice", "0\ta\n1\ta\n", "a name twice"),
            ("one number twice", "0\ta\n0\tb\n", "should be 0 to 1, each of them once"),
        )
    },
}


@pytest.mark.parametrize("what", DAMAGE)
def test_damaged_checkpoints(tmp_path, capsys, what):
    data, save, *_ = write_dglke(tmp_path, "RotatE")
    graph = dglke_graph(data / "train.txt", tmp_path / "g", split=(1, 0, 0))
    damage, message = DAMAGE[what]
    damage(data, save)
    with pytest.raises((StorageError, FormatError), match=message):
        dglke_run(save, graph, tmp_path / "run", data=data)
    assert not (tmp_path / "run").exists()


REFUSED = {
    **{what: DAMAGE[what] for what in ("half a configuration", "no configuration", "no table", "rows lack")},
    "another model": (
        lambda data, save: change(save, model="TransR"),
        "the model TransR of DGL-KE has no equal here",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_model_is_refused_before_a_graph_is_made(tmp_path, capsys, what):
    data, save, *_ = write_dglke(tmp_path, "RotatE")
    damage, message = REFUSED[what]
    damage(data, save)
    words = ["from=dglke", f"input.train={data / 'train.txt'}", f"checkpoint={save}"]
    assert cli.import_([*words, f"graph={tmp_path / 'g'}", f"output={tmp_path / 'run'}"]) != 0
    assert re.search(message, capsys.readouterr().err)
    assert not (tmp_path / "g").exists()


@pytest.mark.parametrize(
    ("format", "lines", "message"),
    [
        ("built_in", "entity 0\t_likes\tentity 99\n", "edge 1: the entity 'entity 99' is in no mapping"),
        ("built_in", "entity 0\t_loves\tentity 1\n", "edge 1: the relation '_loves' is in no mapping"),
        ("built_in", "entity 0\t_likes\n", "column"),
        ("built_in", "entity 0\t_likes\tentity 1\nentity 0\t_li", "line 2"),
        ("udd_hrt", "0\t0\t9\n", "edge 1: the entity '9' is in no mapping"),
        ("udd_hrt", "0\t0\t1\n0\tx\t1\n", "edge 2: the relation 'x' is no whole number"),
        ("udd_hrt", "", "empty"),
    ],
)
def test_damaged_triples(tmp_path, format, lines, message):
    data, *_ = write_dglke(tmp_path, "DistMult", format=format)
    (data / "train.txt").write_text(lines)
    with pytest.raises(FormatError, match=message):
        dglke_graph(data / "train.txt", tmp_path / "g", format=format)
    assert not (tmp_path / "g").exists()


def test_blocks_of_names_are_as_large_as_all_names(tmp_path, monkeypatch):
    data = write_dglke(tmp_path, "DistMult")[0]
    sizes = []
    plain = dglke_triples._text_blocks

    def note(path, delimiter, columns, block_bytes=1, *, weighted=False):
        sizes.append((path.name, block_bytes))
        return plain(path, delimiter, columns, 1 << 20, weighted=weighted)

    monkeypatch.setattr(dglke_triples, "_TEXT_BLOCK_BYTES", 1)
    monkeypatch.setattr(dglke_triples, "_text_blocks", note)
    dglke_graph(data / "train.txt", tmp_path / "g", split=(1, 0, 0))
    names = read_mapping(next(data.glob("entities.*")), "\t")
    assert dict(sizes)["train.txt"] >= sum(map(len, names))


def test_names_are_compared_without_a_table_of_them(monkeypatch):
    names = [f"entity {number}" for number in range(100_000)]
    tracemalloc.start()
    try:
        assert not has_repeats(names)
        assert tracemalloc.get_traced_memory()[1] < 20 * len(names)
    finally:
        tracemalloc.stop()
    assert has_repeats([*names, "entity 7"])
    monkeypatch.setattr(files, "hash", len, raising=False)  # all are alike but for their length
    assert not has_repeats(["a", "b", "cc"])
    assert has_repeats(["a", "b", "cc", "b"])
