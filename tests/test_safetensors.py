"""Reading .safetensors files and model folders: what is whole is read exactly, what is damaged is named in one line."""

import json
import os
import struct
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from one_line import fails
from safetensors.numpy import save, save_file
from tiny import tiny_weights, write_checkpoint

from tinymlx.errors import UserError
from tinymlx.hub import checksums, tokenizer
from tinymlx.hub.checkpoint import INDEX, open_checkpoint
from tinymlx.hub.safetensors import SafetensorsFile
from tinymlx.hub.source import ModelSource, resolve

pytestmark = pytest.mark.capability("safetensors")

TENSORS = {
    "a.weight": np.arange(12, dtype=np.float32).reshape(3, 4),
    "a.scales": np.arange(6, dtype=np.float16).reshape(3, 2),
    "b": np.array([1, 2, 3], np.uint8),
    "empty": np.zeros((0, 4), np.float32),
}


def raw_file(path: Path, header, payload: bytes = b"") -> Path:
    """A file with any header: a dict, or its bytes."""
    data = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(data)) + data + payload)
    return path


def entry(dtype="F32", shape=(2,), offsets=(0, 8)) -> dict:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


@pytest.mark.parametrize(
    "dtype",
    ["bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "float32", "float64"],
)
def test_every_dtype_is_read_as_stored(tmp_path, dtype):
    stored = (np.random.default_rng(0).normal(size=(5, 7)) * 50).astype(dtype)
    save_file({"pad": np.zeros(3, np.uint8), "x": stored}, tmp_path / "x.safetensors")
    with mx.stream(mx.cpu):  # float64 lives on the CPU
        read = SafetensorsFile(tmp_path / "x.safetensors").read("x")
        assert read.dtype == getattr(mx, dtype, mx.bool_)
        np.testing.assert_array_equal(np.array(read), stored)


def test_bfloat16_keeps_its_bits(tmp_path):
    stored = mx.random.normal((4, 6), key=mx.random.key(1)).astype(mx.bfloat16)
    mx.save_safetensors(str(tmp_path / "x.safetensors"), {"x": stored})
    read = SafetensorsFile(tmp_path / "x.safetensors").read("x")
    assert read.dtype == mx.bfloat16 and mx.array_equal(read, stored)


def test_eight_bit_floats_arrive_as_raw_bytes(tmp_path):
    file = SafetensorsFile(raw_file(tmp_path / "x.safetensors", {"x": entry("F8_E4M3", (3,), (0, 3))}, b"\x01\x02\xff"))
    assert file.tensors["x"].dtype == "F8_E4M3" and file.read("x").tolist() == [1, 2, 255]


@pytest.mark.parametrize("padding", range(8))
def test_payload_may_start_anywhere(tmp_path, padding):
    header = json.dumps({"x": entry("F32", (2,), (0, 8))}).encode() + b" " * padding
    file = SafetensorsFile(raw_file(tmp_path / "x.safetensors", header, np.array([1.5, -2], np.float32).tobytes()))
    assert file.read("x").tolist() == [1.5, -2]


def test_every_tensor_reads_back(tmp_path):
    save_file(TENSORS, tmp_path / "x.safetensors", metadata={"format": "pt"})
    file = SafetensorsFile(tmp_path / "x.safetensors")
    read = {name: file.read(name) for name in file.tensors}
    assert read.keys() == TENSORS.keys()
    assert all(
        np.array_equal(np.array(read[name]), TENSORS[name]) and read[name].shape == TENSORS[name].shape for name in read
    )


def test_payload_is_not_read_before_it_is_asked_for(tmp_path):
    """A header over a hole of 1 TB in a sparse file opens at once."""
    path = raw_file(tmp_path / "x.safetensors", {"x": entry("U8", (1024, 2**30), (0, 2**40))})
    try:
        os.truncate(path, path.stat().st_size + 2**40)
    except OSError:
        pytest.skip("no sparse files of 1 TB here")
    assert SafetensorsFile(path).tensors["x"].nbytes == 2**40


DAMAGE = {
    "header length zero": (b"", b"", ["header length 0"]),
    "not JSON": (b"{nonsense}", b"", ["not JSON"]),
    "not UTF-8": (b'{"\xff": 1}', b"", ["not JSON"]),
    "a list": (b"[1, 2]", b"", ["not a JSON object"]),
    "NaN": (b'{"x": NaN}', b"", ["NaN"]),
    "nested": (b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", b"", ["not JSON"]),
    "digits": (b'{"x":{"dtype":"U8","shape":[' + b"9" * 5000 + b'],"data_offsets":[0,1]}}', b"0", ["not JSON"]),
    "duplicate": (b'{"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"x":{}}', b"0", ["x", "twice"]),
    "metadata is a list": ({"__metadata__": [1]}, b"", ["__metadata__"]),
    "metadata": ({"__metadata__": {"format": 3}}, b"", ["__metadata__"]),
    "no dtype": ({"x": {"shape": [2], "data_offsets": [0, 8]}}, bytes(8), ["tensor x", "dtype"]),
    "entry is a list": ({"x": [1]}, b"", ["tensor x"]),
    "unknown dtype": ({"x": entry("F99")}, bytes(8), ["tensor x", "F99"]),
    "dtype is a number": ({"x": entry(32)}, bytes(8), ["tensor x", "32"]),
    "negative size": ({"x": entry(shape=(-2,))}, bytes(8), ["tensor x", "shape"]),
    "size true": ({"x": entry(shape=(True, 2))}, bytes(8), ["tensor x", "shape"]),
    "size 2.0": ({"x": entry(shape=(2.0,))}, bytes(8), ["tensor x", "shape"]),
    "size too large for MLX": ({"x": entry("U8", (0, 2**40), (0, 0))}, b"", ["tensor x", "shape"]),
    "shape is a number": ({"x": {"dtype": "U8", "shape": 8, "data_offsets": [0, 8]}}, bytes(8), ["tensor x", "shape"]),
    "ten thousand dimensions": ({"x": entry("U8", (1,) * 10_000, (0, 1))}, b"0", ["tensor x", "shape"]),
    "three offsets": ({"x": entry(offsets=(0, 8, 9))}, bytes(8), ["tensor x", "data_offsets"]),
    "offsets backwards": ({"x": entry(offsets=(8, 0))}, bytes(8), ["tensor x", "data_offsets"]),
    "negative offset": ({"x": entry(offsets=(-8, 0))}, bytes(8), ["tensor x", "data_offsets"]),
    "more bytes than the shape": ({"x": entry(offsets=(0, 12))}, bytes(12), ["tensor x", "12 bytes"]),
    "beyond the end": ({"x": entry(), "y": entry(offsets=(8, 16))}, bytes(12), ["tensor y", "cut off", "truncated"]),
    "overlap": ({"x": entry(), "y": entry(offsets=(4, 12))}, bytes(12), ["tensor y", "overlaps", "x"]),
    "the same place": ({"x": entry(), "y": entry()}, bytes(8), ["overlaps"]),
    "hole": ({"x": entry(), "y": entry(offsets=(12, 20))}, bytes(20), ["tensor y", "hole"]),
    "hole at the start": ({"x": entry(offsets=(4, 12))}, bytes(12), ["tensor x", "hole"]),
    "bytes left over": ({"x": entry()}, bytes(9), ["1 bytes follow"]),
    "name with a line break": ({"x\ny": entry("F99")}, bytes(8), ["F99"]),
    "name without end": ({"x" * 10_000: entry("F99")}, bytes(8), ["10000 characters"]),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_header_is_one_line_with_file_and_tensor(tmp_path, kind):
    header, payload, words = DAMAGE[kind]
    path = raw_file(tmp_path / "model.safetensors", header, payload)
    fails(lambda: SafetensorsFile(path), str(path), *words)


@pytest.mark.parametrize(
    "data", [b"", b"abc", b"\xff" * 8, struct.pack("<Q", 100) + b"{}", struct.pack("<Q", 2**62) + b"{}"]
)
def test_no_header(tmp_path, data):
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    fails(lambda: SafetensorsFile(path), str(path))


def test_absent_and_unreadable(tmp_path):
    fails(lambda: SafetensorsFile(tmp_path / "none.safetensors"), "none.safetensors", "No such file")
    fails(lambda: SafetensorsFile(tmp_path), str(tmp_path))


def test_truncation_at_every_byte(tmp_path):
    whole = save(TENSORS)
    path = tmp_path / "model.safetensors"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        fails(lambda: SafetensorsFile(path), str(path))
    path.write_bytes(whole + b"\0")
    fails(lambda: SafetensorsFile(path), "follow the last tensor")


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_changed_header_byte_is_found_or_harmless(tmp_path, data):
    """Any one byte of length field or header: a UserError, or the same bytes under each shape.

    A dtype of equal size, or a name, may differ: those are for the model to find.
    """
    whole = bytearray(save(TENSORS, metadata={"format": "pt"}))
    end = 8 + int.from_bytes(whole[:8], "little")
    position = data.draw(st.integers(0, end - 1))
    whole[position] = data.draw(st.integers(0, 255))
    path = tmp_path / "model.safetensors"
    path.write_bytes(whole)
    try:
        file = SafetensorsFile(path)
        read = {name: file.read(name) for name in file.tensors}
    except UserError as error:
        assert str(path) in str(error) and "\n" not in str(error)
        return
    assert sorted((x.shape, np.array(x).tobytes()) for x in read.values()) == sorted(
        (x.shape, x.tobytes()) for x in TENSORS.values()
    )
    assert sum(name not in TENSORS for name in read) <= 1


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda x: st.lists(x) | st.dictionaries(st.text(max_size=5), x),
    )
)
@pytest.mark.full
def test_any_json_as_header(tmp_path, header):
    path = raw_file(tmp_path / "model.safetensors", json.dumps(header).encode(), bytes(16))
    with pytest.raises(UserError):
        SafetensorsFile(path)


def test_a_file_replaced_after_opening_is_found(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file(TENSORS, path)
    file = SafetensorsFile(path)
    path.write_bytes(path.read_bytes()[:100])
    fails(lambda: file.read("b"), str(path), "changed")


# Folders


def checkpoint(folder: Path):
    return open_checkpoint(ModelSource(str(folder), folder, "safetensors"))


def edit_index(folder: Path, change) -> None:
    index = json.loads((folder / INDEX).read_text())
    change(index["weight_map"])
    (folder / INDEX).write_text(json.dumps(index))


@pytest.fixture
def sharded(tmp_path) -> Path:
    return write_checkpoint(tmp_path / "model", shards=3)


@pytest.mark.parametrize("shards", [1, 3])
def test_a_folder_is_read_whole(tmp_path, shards):
    folder = write_checkpoint(tmp_path / "model", shards=shards)
    opened = checkpoint(folder)
    expected = tiny_weights(opened.config)
    assert opened.tensors.keys() == expected.keys() and opened.generation_config == {}
    assert opened.nbytes == sum(x.nbytes for x in expected.values())
    for name, info in opened.tensors.items():
        assert info == (name, "F32", expected[name].shape, expected[name].nbytes, info.file)
        np.testing.assert_array_equal(np.array(opened.read(name)), expected[name])


def test_shards_without_an_index_are_taken_when_their_names_tell(sharded):
    (sharded / INDEX).unlink()
    assert len(checkpoint(sharded).files) == 3
    (sharded / "model-00002-of-00003.safetensors").unlink()
    fails(lambda: checkpoint(sharded), "model-00002-of-00003.safetensors", "missing")
    (sharded / "model-00003-of-00003.safetensors").rename(sharded / "model-extra.safetensors")
    fails(lambda: checkpoint(sharded), "2 .safetensors files", INDEX)


def first(weight_map) -> str:
    return sorted(weight_map)[0]


INDEX_DAMAGE = {
    "absent file": (
        lambda m: m.update(x="model-00009.safetensors"),
        ["model-00009.safetensors", "missing", "tensor x"],
    ),
    "parent folder": (lambda m: m.update({first(m): "../model.safetensors"}), ["outside", "../model.safetensors"]),
    "absolute": (lambda m: m.update({first(m): "/etc/model.safetensors"}), ["outside", "/etc/model.safetensors"]),
    "subfolder": (lambda m: m.update({first(m): "sub/model.safetensors"}), ["outside"]),
    "empty": (lambda m: m.update({first(m): ""}), ["tensor"]),
    "dots": (lambda m: m.update({first(m): ".."}), [first({"lm_head.weight": 0})]),
    "number": (lambda m: m.update({first(m): 3}), ["not a file name"]),
    "pickle": (lambda m: m.update({first(m): "model.bin"}), ["model.bin", "not a .safetensors"]),
    "null byte": (lambda m: m.update({first(m): "a\0.safetensors"}), ["outside"]),
    "tensor not in the file": (lambda m: m.update(ghost="model-00001-of-00003.safetensors"), ["lacks tensor ghost"]),
    "tensor not in the index": (lambda m: m.pop(first(m)), ["does not list", "lm_head.weight"]),
    "the wrong file": (
        lambda m: m.update({first(m): "model-00003-of-00003.safetensors"}),
        ["maps tensor lm_head.weight"],
    ),
    "nothing": (lambda m: m.clear(), ["no weight_map"]),
}


@pytest.mark.parametrize("kind", INDEX_DAMAGE)
def test_index_that_does_not_fit(sharded, kind):
    change, words = INDEX_DAMAGE[kind]
    edit_index(sharded, change)
    fails(lambda: checkpoint(sharded), str(sharded), *words)


def test_index_that_is_no_index(sharded):
    for text in ("", "{}", "[]", '{"weight_map": []}', "\x00"):
        (sharded / INDEX).write_text(text)
        fails(lambda: checkpoint(sharded), INDEX)


def test_a_tensor_in_two_files(sharded):
    shards = sorted(sharded.glob("*.safetensors"))
    twice = {"lm_head.weight": np.zeros((2, 2), np.float32)}
    for shard in shards[:2]:
        save_file(twice, shard)
    edit_index(sharded, lambda m: (m.clear(), m.update({"lm_head.weight": shards[0].name, "x": shards[1].name})))
    fails(lambda: checkpoint(sharded), "tensor lm_head.weight", shards[0].name, shards[1].name)


def test_damage_in_one_shard_names_it(sharded):
    shard = sharded / "model-00002-of-00003.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1])
    fails(lambda: checkpoint(sharded), str(shard), "truncated", "tensor")
    shard.write_bytes(b"")
    fails(lambda: checkpoint(sharded), str(shard), "empty")


CONFIGS = {
    "empty": b"",
    "text": b"hello",
    "list": b"[]",
    "string": b'"qwen3"',
    "not UTF-8": b"\xff\xfe{}",
    "deep": b"[" * 200_000,
    "cut": b'{"model_type": "qw',
}


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_config_that_is_not_a_json_object(tmp_path, kind, name):
    folder = write_checkpoint(tmp_path / "model")
    (folder / name).write_bytes(CONFIGS[kind])
    fails(lambda: checkpoint(folder), str(folder / name))


def test_huge_config_is_not_read(tmp_path):
    folder = write_checkpoint(tmp_path / "model")
    os.truncate(folder / "config.json", 2**40)
    fails(lambda: checkpoint(folder), "config.json", "too many")


def test_folders_without_a_model(tmp_path):
    fails(lambda: checkpoint(tmp_path), "config.json is missing")
    (tmp_path / "config.json").write_text("{}")
    fails(lambda: checkpoint(tmp_path), "no .safetensors")
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    fails(lambda: checkpoint(tmp_path), "pickle")
    (tmp_path / "x.gguf").write_bytes(b"")
    fails(lambda: checkpoint(tmp_path), "x.gguf")


def test_links(tmp_path):
    """Links inside the folder and those of the hub's cache are followed; one that leads elsewhere is not."""
    folder = write_checkpoint(tmp_path / "model")
    (folder / "model.safetensors").rename(folder / "stored")
    (folder / "model.safetensors").symlink_to("stored")
    checkpoint(folder)
    (tmp_path / "link").symlink_to(folder)
    checkpoint(tmp_path / "link")

    (folder / "model.safetensors").unlink()
    (folder / "stored").rename(tmp_path / "elsewhere")
    (folder / "model.safetensors").symlink_to(tmp_path / "elsewhere")
    fails(lambda: checkpoint(folder), "model.safetensors", str(tmp_path / "elsewhere"), "outside")

    snapshot = tmp_path / "hub" / "models--a--b" / "snapshots" / ("0" * 40)
    (snapshot.parent.parent / "blobs").mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for name, blob in (("config.json", "1"), ("model.safetensors", "2")):
        (folder / name).resolve().rename(snapshot.parent.parent / "blobs" / blob)
        (snapshot / name).symlink_to(f"../../blobs/{blob}")
    checkpoint(snapshot)
    (snapshot / "config.json").unlink()
    (tmp_path / "secret").write_text("{}")
    (snapshot / "config.json").symlink_to(tmp_path / "secret")
    fails(lambda: checkpoint(snapshot), "config.json", "outside")


# Checksums


@pytest.fixture
def summed(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = write_checkpoint(tmp_path / "model", shards=2)
    checksums.write_sums(folder, sorted(path.name for path in folder.iterdir()))
    return folder


def test_sums_are_those_of_sha256sum(summed):
    import shutil
    import subprocess

    if shutil.which("sha256sum") is None:
        pytest.skip("no sha256sum here")
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"], cwd=summed, check=True)


def test_whole_folder_verifies_with_progress(summed):
    calls = []
    checkpoint(summed).verify_checksums(lambda done, total: calls.append((done, total)))
    total = sum(path.stat().st_size for path in summed.iterdir() if path.name != "SHA256SUMS")
    assert calls[-1] == (total, total) and sorted(calls) == calls


def flip_last_byte(path: Path) -> None:
    with open(path, "r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)[0]
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last ^ 1]))


def test_damage_in_a_payload_is_found(summed):
    opened = checkpoint(summed)
    opened.verify_checksums()
    shard = summed / "model-00002-of-00002.safetensors"
    flip_last_byte(shard)
    fails(checkpoint(summed).verify_checksums, str(shard), "differs", "SHA256SUMS")


def test_damage_is_found_in_a_file_verified_before(summed, monkeypatch):
    """Even with its size and modification time put back: the change time tells."""
    monkeypatch.setattr(checksums, "_SETTLED_S", -1.0)  # remember at once
    checkpoint(summed).verify_checksums()
    hashed = []
    real = checksums.sha256
    monkeypatch.setattr(checksums, "sha256", lambda path, *a, **k: hashed.append(path.name) or real(path, *a, **k))
    checkpoint(summed).verify_checksums()
    assert hashed == []  # remembered
    shard = summed / "model-00001-of-00002.safetensors"
    stat = shard.stat()
    flip_last_byte(shard)
    os.utime(shard, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    fails(checkpoint(summed).verify_checksums, str(shard))
    assert hashed == [shard.name]


def test_a_fresh_file_is_not_remembered(summed):
    """Right after a write the next one could carry the same timestamp."""
    checkpoint(summed).verify_checksums()
    assert checksums._read_memory() == {}


def test_memory_written_by_others_is_not_trusted(summed, monkeypatch):
    monkeypatch.setattr(checksums, "_SETTLED_S", -1.0)
    checkpoint(summed).verify_checksums()
    file = checksums._memory_file()
    assert file.stat().st_mode & 0o777 == 0o600 and file.parent.stat().st_mode & 0o777 == 0o700
    assert checksums._read_memory()
    file.chmod(0o666)
    assert checksums._read_memory() == {}
    file.chmod(0o600)
    file.write_text("[" * 100_000)
    assert checksums._read_memory() == {}


def test_sums_that_do_not_fit(summed):
    sums = summed / "SHA256SUMS"
    text = sums.read_text()
    opened = checkpoint(summed)
    (summed / "model.safetensors.index.json").rename(summed / "gone")
    fails(opened.verify_checksums, "model.safetensors.index.json", "missing")
    (summed / "gone").rename(summed / "model.safetensors.index.json")
    sums.write_text("\n".join(line for line in text.splitlines() if "00001" not in line))
    fails(opened.verify_checksums, "model-00001-of-00002.safetensors", "not listed")
    for line in ("nonsense", "0" * 64 + "  ../secret", "0" * 64 + "  /etc/passwd"):
        sums.write_text(text + line)
        fails(opened.verify_checksums, "SHA256SUMS", "line 5")
    sums.write_bytes(b"\xff")
    fails(opened.verify_checksums, "SHA256SUMS")
    sums.unlink()
    opened.verify_checksums()


@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        INDEX,
        "tokenizer.json",
        "chat_template.jinja",
        "SHA256SUMS",
    ],
)
@pytest.mark.parametrize("kind", ["fifo", "loop", "broken link"])
def test_what_is_no_file_is_named_and_nothing_hangs(tmp_path, name, kind):
    write_checkpoint(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    file = tmp_path / name
    file.unlink(missing_ok=True)
    if kind == "fifo":
        os.mkfifo(file)
    else:
        file.symlink_to(name if kind == "loop" else "not-there")

    fails(lambda: read_all(tmp_path), name)


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("tokenizer.json", "too many"),
        ("chat_template.jinja", "too many"),
        ("SHA256SUMS", "not a list of checksums"),
        ("config.json", "too many"),
    ],
)
def test_files_that_are_far_too_large_are_not_read(tmp_path, name, what):
    write_checkpoint(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with open(tmp_path / name, "wb") as file:
        file.truncate(40 << 30)

    fails(lambda: read_all(tmp_path), name, what)


def read_all(folder: Path) -> None:
    """Every file of a model folder that is read before its tensors are."""
    source = resolve(str(folder))
    open_checkpoint(source).verify_checksums()
    tokenizer._chat_templates(folder, {})
    tokenizer.load_tokenizer(source)
