"""The data that the programs of FRESH5 read, made up: the real formats and file names, few items, fixed seeds; nothing is downloaded.

    OOMPROOF_PROGRAMS=.programs python bench/sizing/public_data.py

It writes into `data` below the folder of the programs, and where a program has its path written into itself, into that program's folder.
Needs numpy, Pillow and scipy; some seconds. What the programs left of caches beside their data is removed with it.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

PROGRAMS = Path(os.environ["OOMPROOF_PROGRAMS"]).absolute()
DATA = PROGRAMS / "data"


def main() -> None:
    pictures()
    digits()
    words()
    tokens()
    citations()
    proteins()
    molecules()
    clouds()
    traffic()
    purchases()


def fresh(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def linked(source: Path, target: Path) -> None:
    """The same file under a second name, which takes no room where the disk can do that."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def pictures() -> None:
    """512 and 128 JPEGs of eight kinds (ImageNet's layout), and under the names that GANs and faces have."""
    rng = np.random.default_rng(1)
    folder = fresh(DATA / "pictures")
    for split, count in (("train", 64), ("val", 16)):
        for kind in range(8):
            for number in range(count):
                coarse = rng.integers(0, 256, (6, 6, 3), dtype=np.uint8)
                file = folder / split / f"kind{kind}" / f"{number:03}.jpg"
                file.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(coarse).resize((192, 192), Image.Resampling.BICUBIC).save(file, quality=50)
    files = sorted(folder.glob("train/*/*.jpg"))
    fresh(DATA / "faces")
    fresh(PROGRAMS / "PyTorch-GAN/data")
    for number, file in enumerate(files):
        linked(file, DATA / "faces" / "CelebA" / f"{number:06}" / "face.jpg")
    _attributes([f"{number % len(files):06}/face.jpg" for number in range(2600)])
    for split, count in (("train", 48), ("val", 12), ("test", 12)):
        for number in range(count):
            both = files[2 * number : 2 * number + 2]
            for side, file in zip("AB", both, strict=True):
                linked(file, PROGRAMS / f"PyTorch-GAN/data/monet2photo/{split}/{side}/{number:03}.jpg")
            pair = np.concatenate([np.asarray(Image.open(file)) for file in both], 1)
            target = PROGRAMS / f"PyTorch-GAN/data/edges2shoes/{split}/{number:03}.jpg"
            target.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pair).save(target, quality=50)
            linked(target, PROGRAMS / f"PyTorch-GAN/data/facades/{split}/{number:03}.jpg")


def _attributes(names: list[str]) -> None:
    rng = np.random.default_rng(2)
    kinds = ("Black_Hair", "Blond_Hair", "Brown_Hair", "Male", "Young")
    rows = [
        " ".join([name, *("1" if yes else "-1" for yes in rng.random(len(kinds)) < 0.4)]) for name in names
    ]
    (DATA / "faces" / "list_attr_celeba.txt").write_text("\n".join([str(len(rows)), " ".join(kinds), *rows]))


def digits() -> None:
    """MNIST's four files with 2,560 and 512 digits, FashionMNIST's with 960 and 256."""
    rng = np.random.default_rng(3)
    for folder, train, test in ((DATA / "MNIST/raw", 2560, 512), (DATA / "FashionMNIST/raw", 960, 256)):
        fresh(folder)
        for name, count in (("train", train), ("t10k", test)):
            labels = np.arange(count, dtype=np.uint8) % 10
            coarse = rng.integers(0, 256, (count, 7, 7), dtype=np.uint8)
            images = np.where(coarse > 160, coarse, 0).repeat(4, 1).repeat(4, 2)
            (folder / f"{name}-images-idx3-ubyte").write_bytes(
                struct.pack(">4i", 2051, count, 28, 28) + images.tobytes()
            )
            (folder / f"{name}-labels-idx1-ubyte").write_bytes(
                struct.pack(">2i", 2049, count) + labels.tobytes()
            )
    for place in ("examples/data", "MNISTDiffusion/mnist_data", "TCN/TCN/mnist_pixel/data/mnist"):
        for file in (DATA / "MNIST/raw").iterdir():
            linked(file, PROGRAMS / place / "MNIST/raw" / file.name)


def words() -> None:
    """WikiText's three files: 20,000 words, as frequent as words are."""
    rng = np.random.default_rng(4)
    folder = fresh(DATA / "wikitext")
    vocabulary = np.array([f"w{number:x}" for number in range(20_000)])
    chances = 1 / np.arange(10, 20_010)
    chances /= chances.sum()
    for name, count in (("train", 200_000), ("valid", 20_000), ("test", 20_000)):
        chosen = vocabulary[rng.choice(len(vocabulary), count, p=chances)]
        if name == "train":
            chosen[: len(vocabulary)] = vocabulary
        lines = (" ".join(chosen[start : start + 50]) for start in range(0, count, 50))
        (folder / f"{name}.txt").write_text("\n".join(lines) + "\n")
    short = fresh(PROGRAMS / "pytorch-lightning/examples/pytorch/basics/data") / "wikitext-2.txt"
    short.write_text("".join((folder / "train.txt").read_text().splitlines(keepends=True)[:3100]))


def tokens() -> None:
    """What nanoGPT's and llama2.c's own preparation leaves: tokens of 16 bits."""
    rng = np.random.default_rng(5)
    characters = fresh(PROGRAMS / "nanoGPT/data/shakespeare_char")
    signs = [chr(32 + number) for number in range(65)]
    meta = {"vocab_size": 65, "itos": dict(enumerate(signs)), "stoi": {sign: at for at, sign in enumerate(signs)}}  # fmt: skip
    (characters / "meta.pkl").write_bytes(pickle.dumps(meta))
    for folder, top in ((characters, 65), (fresh(PROGRAMS / "nanoGPT/data/openwebtext"), 50257)):
        rng.integers(0, top, 300_000, dtype=np.uint16).tofile(folder / "train.bin")
        rng.integers(0, top, 60_000, dtype=np.uint16).tofile(folder / "val.bin")
    stories = fresh(PROGRAMS / "llama2.c/data/TinyStories_all_data")
    for number, count in enumerate((100_000, 400_000)):
        rng.integers(0, 32_000, count, dtype=np.uint16).tofile(stories / f"data{number:02}.bin")


def citations() -> None:
    """PubMed as Planetoid keeps it (30,000 papers, 500 features), and the two tables of text of Cora (4,000 papers)."""
    from scipy.sparse import csr_matrix

    rng = np.random.default_rng(6)
    papers, features, kinds, tested = 30_000, 500, 3, 1000
    folder = fresh(PROGRAMS / "pytorch_geometric/data/Planetoid").joinpath("PubMed/raw")
    folder.mkdir(parents=True)
    columns = rng.integers(0, features, (papers, 8))
    x = csr_matrix((np.ones(papers * 8, np.float32), columns.ravel(), np.arange(0, papers * 8 + 1, 8)))
    x.resize((papers, features))
    y = np.eye(kinds, dtype=np.int32)[rng.integers(0, kinds, papers)]
    cited = rng.integers(0, papers, (papers, 6))
    graph: dict[int, list[int]] = {number: [] for number in range(papers)}
    for number, others in enumerate(cited.tolist()):
        for other in others:
            graph[number].append(other)
            graph[other].append(number)
    known = papers - tested
    parts = {"x": x[:60], "tx": x[known:], "allx": x[:known], "y": y[:60], "ty": y[known:], "ally": y[:known], "graph": graph}  # fmt: skip
    for name, part in parts.items():
        (folder / f"ind.pubmed.{name}").write_bytes(pickle.dumps(part, protocol=4))
    np.savetxt(folder / "ind.pubmed.test.index", rng.permutation(np.arange(known, papers)), fmt="%d")

    papers, features = 4000, 100
    folder = fresh(PROGRAMS / "pyGAT/data/cora")
    ones = rng.random((papers, features)) < 0.1
    ones[:, 0] = True
    with (folder / "cora.content").open("w") as file:
        for number, row in enumerate(ones.astype(int)):
            print(1000 + number, *row, f"Kind_{number % 7}", sep="\t", file=file)
    edges = np.unique(rng.integers(0, papers, (12_000, 2)), axis=0) + 1000
    np.savetxt(folder / "cora.cites", edges, fmt="%d", delimiter="\t")


def proteins() -> None:
    """PPI's twelve files, with graphs of 1,500 proteins; PROTEINS in the text of the TU collection."""
    rng = np.random.default_rng(7)
    folder = fresh(PROGRAMS / "pytorch_geometric/data/PPI").joinpath("raw")
    folder.mkdir()
    size, first = 1500, 1
    for split, graphs in (("train", 2), ("valid", 1), ("test", 1)):
        count = size * graphs
        np.save(folder / f"{split}_feats.npy", (rng.random((count, 50)) < 0.1).astype(np.int8))
        np.save(folder / f"{split}_labels.npy", (rng.random((count, 121)) < 0.3).astype(np.int8))
        np.save(folder / f"{split}_graph_id.npy", np.repeat(np.arange(first, first + graphs), size))
        first += graphs
        links = []
        for graph in range(graphs):
            ends = rng.integers(0, size, (30_000, 2)) + graph * size
            links += [{"source": a, "target": b} for a, b in ends.tolist() if a != b]
        nodes = [{"id": number} for number in range(count)]
        text = {"directed": True, "multigraph": False, "graph": {}, "nodes": nodes, "links": links}
        (folder / f"{split}_graph.json").write_text(json.dumps(text, separators=(",", ":")))

    folder = fresh(PROGRAMS / "pytorch_geometric/data/PROTEINS_dense").joinpath("PROTEINS/raw")
    folder.mkdir(parents=True)
    graphs = 100
    counts = rng.integers(20, 150, graphs)
    starts = np.cumsum(counts) - counts
    edges = []
    for start, count in zip(starts, counts, strict=True):
        ends = np.unique(np.sort(rng.integers(0, count, (2 * count, 2)), 1), axis=0) + start + 1
        edges.append(np.concatenate([ends, ends[:, ::-1]]))
    tables = {
        "A": np.concatenate(edges), "graph_indicator": np.repeat(np.arange(1, graphs + 1), counts),
        "graph_labels": rng.integers(0, 2, graphs), "node_labels": rng.integers(0, 3, counts.sum()),
    }  # fmt: skip
    for table, values in tables.items():
        np.savetxt(folder / f"PROTEINS_{table}.txt", values, fmt="%d", delimiter=", ")


def molecules() -> None:
    """MUTAG as powerful-gnns reads it: 300 graphs, of each node its tag and its neighbours."""
    rng = np.random.default_rng(8)
    folder = fresh(PROGRAMS / "powerful-gnns/dataset/MUTAG")
    with (folder / "MUTAG.txt").open("w") as file:
        print(300, file=file)
        for graph in range(300):
            size = int(rng.integers(60, 140))
            near: list[set[int]] = [set() for _ in range(size)]
            for a, b in rng.integers(0, size, (3 * size, 2)).tolist():
                if a != b:
                    near[a].add(b)
                    near[b].add(a)
            print(size, graph % 2, file=file)
            for others in near:
                print(int(rng.integers(0, 7)), len(others), *sorted(others), file=file)


def clouds() -> None:
    """ModelNet40: one file of 1,200 points a shape, each named several times in the lists."""
    rng = np.random.default_rng(10)
    folder = fresh(PROGRAMS / "Pointnet_Pointnet2_pytorch/data/modelnet40_normal_resampled")
    shapes = [f"shape{number:02}" for number in range(40)]
    (folder / "modelnet40_shape_names.txt").write_text("\n".join(shapes) + "\n")
    for shape in shapes:
        (folder / shape).mkdir()
        np.savetxt(folder / shape / f"{shape}_0001.txt", rng.normal(size=(1200, 6)), "%.3f", ",")
    for split, times in (("train", 8), ("test", 2)):
        (folder / f"modelnet40_{split}.txt").write_text("\n".join(f"{shape}_0001" for shape in shapes * times) + "\n")  # fmt: skip


def traffic() -> None:
    """METR-LA as its preparation leaves it: 207 sensors, twelve steps in and twelve out; and the sensors' distances."""
    rng = np.random.default_rng(11)
    folder = fresh(DATA / "METR-LA")
    steps = np.arange(24)[None, :, None, None]
    for split, count in (("train", 640), ("val", 128), ("test", 128)):
        start = np.arange(count)[:, None, None, None]
        speed = np.round(60 + 9 * np.sin((start + steps) / 24 + rng.random((1, 1, 207, 1)) * 6))
        both = np.concatenate([speed, np.broadcast_to((start + steps) % 288 / 288, speed.shape)], 3)
        np.savez_compressed(
            folder / f"{split}.npz", x=both[:, :12].astype(np.float32), y=both[:, 12:].astype(np.float32)
        )
    near = np.where(rng.random((207, 207)) < 0.05, rng.random((207, 207)), 0).astype(np.float32)
    np.fill_diagonal(near, 1)
    names = [str(number) for number in range(207)]
    (folder / "adj_mx.pkl").write_bytes(pickle.dumps((names, {name: int(name) for name in names}, near)))


def purchases() -> None:
    """MovieLens as SASRec reads it: one line a user and film, in the order of time."""
    rng = np.random.default_rng(14)
    folder = fresh(PROGRAMS / "SASRec.pytorch/python/data")
    (folder / "ml-1m.txt").write_text("".join(f"{user} {film}\n" for user, film in _films(rng)))


def _films(rng: np.random.Generator) -> Iterator[tuple[int, int]]:
    for user in range(1, 1025):
        for film in rng.integers(1, 3417, int(rng.integers(10, 80))).tolist():
            yield user, film


if __name__ == "__main__":
    main()
