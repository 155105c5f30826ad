"""Small data and checkpoints in exactly the layout that PyTorch-BigGraph and DGL-KE write."""

from __future__ import annotations

import json

import h5py
import numpy as np

ENTITIES = {"user": (3, 4), "item": (3, 2), "tag": (4,)}
"""Entity type → nodes of its partitions; the tag is unpartitioned."""


def names_of(entity, part, count):
    return [f"{entity[0]}{part} {place}" for place in range(count)]


class Pbg:
    """A PyTorch-BigGraph project: folder/entities, folder/edges, folder/model with random parameters."""

    def __init__(
        self,
        folder,
        *,
        entities=None,
        relations=None,
        dynamic=0,
        comparator="dot",
        dim=4,
        seed=0,
        **options,
    ):
        self.folder = folder
        self.rng = np.random.default_rng(seed)
        self.entities = {"all": (4, 3)} if entities is None else entities
        self.relations = relations
        self.dynamic, self.comparator, self.dim, self.options = dynamic, comparator, dim, options
        self.model, self.checkpoint = folder / "model", folder / "model"
        (folder / "entities").mkdir(parents=True)
        (folder / "model").mkdir()
        self.names = {
            entity: [names_of(entity, part, size) for part, size in enumerate(sizes)]
            for entity, sizes in self.entities.items()
        }
        self._write_entities()
        self._write_config()
        self._write_checkpoint()

    def _write_entities(self):
        for entity, parts in self.names.items():
            for part, names in enumerate(parts):
                path = self.folder / "entities"
                (path / f"entity_count_{entity}_{part}.txt").write_text(f"{len(names)}\n")
                (path / f"entity_names_{entity}_{part}.json").write_text(json.dumps(names, indent=4))
        if self.dynamic:
            (self.folder / "entities" / "dynamic_rel_count.txt").write_text(f"{self.dynamic}\n")
            names = [f"rel {i}" for i in range(self.dynamic)]
            (self.folder / "entities" / "dynamic_rel_names.json").write_text(json.dumps(names, indent=4))

    def _write_config(self):
        config = {
            "entity_path": str(self.folder / "entities"),
            "edge_paths": [str(self.folder / "edges")],
            "checkpoint_path": str(self.model),
            "entities": {
                entity: {"num_partitions": len(sizes), "featurized": False, "dimension": None}
                for entity, sizes in self.entities.items()
            },
            "relations": [
                {"name": name, "lhs": lhs, "rhs": rhs, "weight": 1.0, "operator": operator, "all_negs": False}
                for name, lhs, rhs, operator in self.relations
            ],
            "dynamic_relations": bool(self.dynamic),
            "dimension": self.dim,
            "init_scale": 0.001,
            "max_norm": None,
            "global_emb": False,
            "comparator": self.comparator,
            "bias": False,
            "loss_fn": "softmax",
            "num_epochs": 3,
        } | self.options
        self.config = config
        (self.model / "config.json").write_text(json.dumps(config, indent=4))

    def parameter_shapes(self, operator):
        half, full = (self.dim // 2,), (self.dim,)
        square = (self.dim, self.dim)
        return {
            "none": {},
            "diagonal": {"diagonal": full},
            "translation": {"translation": full},
            "complex_diagonal": {"real": half, "imag": half},
            "linear": {"linear_transformation": square},
            "affine": {"linear_transformation": square, "translation": full},
        }[operator]

    def _write_checkpoint(self):
        draw = lambda *shape: self.rng.normal(size=shape).astype(np.float32)  # noqa: E731
        (self.model / "checkpoint_version.txt").write_text("3\n")
        self.rows, self.parameters, self.shift = {}, {}, {}
        for entity, sizes in self.entities.items():
            for part, size in enumerate(sizes):
                self.rows[entity, part] = draw(size, self.dim)
                with h5py.File(self.model / f"embeddings_{entity}_{part}.v3.h5", "w") as file:
                    file.attrs["format_version"] = 1
                    file.create_dataset("embeddings", data=self.rows[entity, part])
                    file.create_dataset("optimizer/state_dict", data=np.frombuffer(b"opaque", "V1"))
        with h5py.File(self.model / "model.v3.h5", "w") as file:
            file.attrs["format_version"] = 1
            file.attrs["config/json"] = json.dumps(self.config)
            group = file.create_group("model", track_order=True)
            for number, (_, _, _, operator) in enumerate(self.relations):
                for side in ("lhs", "rhs") if self.dynamic else ("rhs",):
                    for name, shape in self.parameter_shapes(operator).items():
                        values = draw(*((self.dynamic,) if self.dynamic else ()), *shape)
                        plural = "s" if self.dynamic and name not in ("real", "imag") else ""
                        data = group.create_dataset(
                            f"relations/{number}/operator/{side}/{name}{plural}", data=values
                        )
                        data.attrs["state_dict_key"] = f"{side}_operators.{number}.{name}{plural}"
                        self.parameters[number, side, name] = values
            if self.options.get("global_emb"):
                for entity in self.entities:
                    self.shift[entity] = draw(self.dim)
                    group.create_dataset(f"entities/{entity}/global_embedding", data=self.shift[entity])

    def write_edges(self, name="edges", count=6):
        """Every bucket with some edges; returns them as (head name, relation name, tail name)."""
        folder = self.folder / name
        folder.mkdir()
        lhs_parts = max(len(self.entities[lhs]) for _, lhs, _, _ in self.relations)
        rhs_parts = max(len(self.entities[rhs]) for _, _, rhs, _ in self.relations)
        edges = []
        for i in range(lhs_parts):
            for j in range(rhs_parts):
                rel = self.rng.integers(self.dynamic or len(self.relations), size=count)
                ends = []
                for side, part in ((1, i), (2, j)):
                    types = [self.relations[0 if self.dynamic else r][side] for r in rel]
                    parts = [0 if len(self.entities[entity]) == 1 else part for entity in types]
                    places = [
                        int(self.rng.integers(self.entities[entity][own]))
                        for entity, own in zip(types, parts, strict=True)
                    ]
                    ends.append((types, parts, places))
                with h5py.File(folder / f"edges_{i}_{j}.h5", "w") as file:
                    file.attrs["format_version"] = 1
                    for key, values in (("lhs", ends[0][2]), ("rhs", ends[1][2]), ("rel", rel)):
                        data = np.array(values, np.int64)
                        file.create_dataset(key, data=data, chunks=(4,), maxshape=(None,))
                for row in range(count):
                    head, tail = (self.full_name(*(column[row] for column in end)) for end in ends)
                    edges.append((head, self.relation_name(rel[row]), tail))
        return edges

    def full_name(self, entity, part, place):
        name = self.names[entity][part][place]
        return f"{entity}/{name}" if len(self.entities) > 1 else name

    def relation_name(self, number):
        return f"rel {number}" if self.dynamic else self.relations[number][0]

    def row(self, entity, part, place):
        """A node's row as it is compared, float64."""
        row = self.rows[entity, part][place].astype(np.float64)
        longest = self.options.get("max_norm")
        if longest is not None and np.linalg.norm(row) > longest:
            row = row * (longest / (np.linalg.norm(row) + 1e-7))
        return row + self.shift.get(entity, 0)

    def apply(self, row, side, relation):
        """The operator of one side, float64."""
        number = 0 if self.dynamic else relation
        operator = self.relations[number][3]
        values = {
            name: self.parameters[number, side, name].astype(np.float64)
            for name in self.parameter_shapes(operator)
        }
        if self.dynamic:
            values = {name: value[relation] for name, value in values.items()}
        if operator == "complex_diagonal":
            half = self.dim // 2
            product = (row[:half] + 1j * row[half:]) * (values["real"] + 1j * values["imag"])
            return np.concatenate((product.real, product.imag))
        if operator == "diagonal":
            return row * values["diagonal"]
        if operator in ("linear", "affine"):
            row = values["linear_transformation"] @ row
        return row + values["translation"] if "translation" in values else row

    def compare(self, left, right):
        """The comparator, float64."""
        bias = 0.0
        if self.options.get("bias"):
            bias, left, right = left[0] + right[0], left[1:], right[1:]
        if self.comparator == "cos":
            return bias + left @ right / (np.linalg.norm(left) * np.linalg.norm(right))
        if self.comparator == "dot":
            return bias + left @ right
        square = ((left - right) ** 2).sum()
        return bias - (square if self.comparator == "squared_l2" else np.sqrt(square))

    def score(self, head, relation, tail, ranked):
        """By the definition: `ranked` is compared with others; a node is (type, part, place)."""
        left, right = self.row(*head), self.row(*tail)
        if self.dynamic and ranked == "tail":
            return self.compare(self.apply(left, "lhs", relation), right)
        return self.compare(left, self.apply(right, "rhs", relation))


def write_dglke(folder, model, *, dim=6, gamma=12.0, format="built_in", delimiter="\t", seed=0):
    """Mappings, triples and a checkpoint as dglke_train leaves them; returns names, tables and triples."""
    rng = np.random.default_rng(seed)
    names = [f"entity {i}" for i in range(9)]
    relations = ["_likes", "_knows it", "_part/of"]
    data, save = folder / "data", folder / f"{model}_mine_0"
    data.mkdir(parents=True)
    save.mkdir()
    numbered = format.startswith("udd")
    ending = "tsv" if format.startswith("raw") else "dict"
    for stem, values in (("entities", names), ("relations", relations)):
        lines = [f"{number}{delimiter}{name}\n" for number, name in enumerate(values)]
        (data / f"{stem}.{ending}").write_text("".join(lines))
    order = "hrt" if format == "built_in" else format[-3:]
    triples = {}
    for split, count in (("train", 30), ("valid", 4), ("test", 5)):
        ids = np.stack(
            [rng.integers(9, size=count), rng.integers(3, size=count), rng.integers(9, size=count)], 1
        )
        triples[split] = [(names[h], relations[r], names[t]) for h, r, t in ids.tolist()]
        lines = []
        for row, named in zip(ids.tolist(), triples[split], strict=True):
            cells = dict(zip("hrt", map(str, row) if numbered else named, strict=True))
            lines.append(delimiter.join(cells[letter] for letter in order) + "\n")
        (data / f"{split}.txt").write_text("".join(lines))
    hidden = dim // 2 if model == "RotatE" else dim
    width = {"RESCAL": dim * dim, "RotatE": dim // 2}.get(model, dim)
    entity = rng.uniform(-1, 1, size=(9, dim)).astype(np.float32)
    relation = rng.uniform(-1, 1, size=(3, width)).astype(np.float32)
    np.save(save / f"mine_{model}_entity.npy", entity)
    np.save(save / f"mine_{model}_relation.npy", relation)
    config = {
        "dataset": "mine",
        "model": model,
        "emb_size": hidden,
        "max_train_step": 100,
        "batch_size": 16,
        "neg_sample_size": 4,
        "lr": 0.1,
        "gamma": gamma,
        "double_ent": model == "RotatE",
        "double_rel": False,
        "neg_adversarial_sampling": False,
        "adversarial_temperature": 1.0,
        "regularization_coef": 0.0,
        "regularization_norm": 3,
        "emap_file": f"entities.{ending}",
        "rmap_file": f"relations.{ending}",
    }
    (save / "config.json").write_text(json.dumps(config, indent=4))
    return data, save, names, relations, triples, entity.astype(np.float64), relation.astype(np.float64)


def dglke_score(model, head, relation, tail, *, gamma=12.0, hidden=3):
    """DGL-KE's score of one edge by its definition, float64."""
    if model.startswith("TransE"):
        return gamma - np.linalg.norm(head + relation - tail, ord=1 if model == "TransE_l1" else 2)
    if model == "DistMult":
        return (head * relation * tail).sum()
    half = len(head) // 2
    as_complex = [row[:half] + 1j * row[half:] for row in (head, tail)]
    if model == "ComplEx":
        weight = relation[:half] + 1j * relation[half:]
        return (as_complex[0] * weight * as_complex[1].conj()).real.sum()
    if model == "RESCAL":
        return head @ relation.reshape(len(head), len(head)) @ tail
    phase = relation / ((gamma + 2.0) / hidden / np.pi)
    return gamma - np.abs(as_complex[0] * np.exp(1j * phase) - as_complex[1]).sum()
