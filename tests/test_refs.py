"""Names, files, folders and Hub ids, in that order; a fake stands where the network begins."""

from __future__ import annotations

import json
import sys
import types

import pytest

from roofline.errors import SpecError, UnknownNameError
from roofline.specs.hf import from_hf_config, to_yaml
from roofline.specs.hub import is_hub_id
from roofline.specs.refs import load_model

LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 131072,
}  # fmt: skip
PARAMS = 8_030_261_248  # Llama-3.1-8B


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "my-llama" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(LLAMA))
    return path


class Hub(types.ModuleType):
    """A stand-in for huggingface_hub: `files` are what repositories hold, `error` is what every download raises."""

    def __init__(self, folder):
        super().__init__("huggingface_hub")
        self.folder, self.files, self.error, self.asked = folder, {}, "", []
        self.utils = types.ModuleType("huggingface_hub.utils")
        names = {"HfHubHTTPError": OSError, "EntryNotFoundError": OSError, "RepositoryNotFoundError": OSError}
        for name, base in names.items():
            setattr(self.utils, name, type(name, (base,), {}))
        self.utils.GatedRepoError = type("GatedRepoError", (self.utils.RepositoryNotFoundError,), {})
        both = (self.utils.EntryNotFoundError, FileNotFoundError)
        self.utils.LocalEntryNotFoundError = type("LocalEntryNotFoundError", both, {})

    def hf_hub_download(self, repo_id, filename):
        self.asked.append((repo_id, filename))
        if self.error:
            raise getattr(self.utils, self.error, OSError)(self.error)
        if (repo_id, filename) not in self.files:
            raise self.utils.EntryNotFoundError(filename)
        path = self.folder / filename
        path.write_text(json.dumps(self.files[repo_id, filename]))
        return str(path)


@pytest.fixture
def hub(monkeypatch, tmp_path):
    fake = Hub(tmp_path)
    monkeypatch.setitem(sys.modules, "huggingface_hub", fake)
    monkeypatch.setitem(sys.modules, "huggingface_hub.utils", fake.utils)
    return fake


def test_a_library_name_an_alias_and_a_repository_name_are_one_model():
    models = [load_model(name).model for name in ("llama-3.1-8b", "Llama_3.1-8B", "meta-llama/Llama-3.1-8B")]
    assert [m.params for m in models] == [PARAMS] * 3
    assert load_model("llama-3.1-8b").precision.name == "bf16"


def test_a_config_its_folder_and_its_yaml_are_one_model(config, tmp_path):
    from_file, from_folder = load_model(config), load_model(str(config.parent))
    text = tmp_path / "m.yaml"
    text.write_text(to_yaml(from_file.model))
    assert from_file.model == from_folder.model == load_model(str(text)).model
    assert (from_file.model.params, from_file.model.name) == (PARAMS, "my-llama")


def test_the_library_comes_before_the_file_system(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "llama-3.1-8b").mkdir()
    assert load_model("llama-3.1-8b").model.params == PARAMS


def test_a_side_file_is_found(config):
    side = {"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    (config.parent / "hf_quant_config.json").write_text(json.dumps(side))
    for ref in (config, config.parent):
        assert load_model(ref).precision.text == "nvfp4,kv=fp8"


@pytest.mark.parametrize(("total", "noted"), [(2 * PARAMS, False), (25_100_000_000, True)])
def test_weight_files_are_held_against_the_formats(config, total, noted):
    """A repository whose files are larger than its formats say: a note, never another parameter count.

    AlexsJones/llmfit issue 1045: packed int32 elements counted as parameters and discounted again.
    """
    index = {"metadata": {"total_size": total}, "weight_map": {}}
    (config.parent / "model.safetensors.index.json").write_text(json.dumps(index))
    parsed = load_model(config.parent)
    assert (parsed.model.params, parsed.file_bytes) == (PARAMS, total)
    assert any("25.1 GB" in note and "16.1 GB" in note for note in parsed.notes) == noted


def test_sizes_of_files_where_there_is_no_index(config):
    (config.parent / "model.safetensors").write_bytes(b"\0" * 1000)
    assert load_model(config.parent).file_bytes == 1000


def test_unknown_names_suggest_the_nearest():
    with pytest.raises(UnknownNameError, match=r"llama-3\.1-70b"):
        load_model("llama-3.1-70")


@pytest.mark.parametrize("ref", ["./absent/config.json", "absent.json", "absent.gguf", "absent.yaml", "/a/b/c"])
def test_missing_files(ref):
    with pytest.raises(SpecError, match="there is no file"):
        load_model(ref)


def test_a_folder_without_a_model(tmp_path):
    with pytest.raises(SpecError, match=r"without a config\.json"):
        load_model(str(tmp_path))
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(SpecError, match=r"a\.gguf, b\.gguf"):
        load_model(str(tmp_path))


def test_names_that_no_file_system_takes():
    for ref in ("x" * 5000, "a\0b", ""):
        with pytest.raises(SpecError):
            load_model(ref)


def test_one_checkpoint_of_a_bundle(tmp_path):
    path = tmp_path / "bundle.json"
    fp8 = LLAMA | {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    path.write_text(json.dumps({"variants": {"a/wide": {"config": LLAMA}, "b/narrow": {"config": fp8}}}))
    assert load_model(f"{path}#b/narrow").precision.name == "fp8_block"


# The Hub.


def test_hub_ids():
    assert is_hub_id("owner/name-1.5_x") and not is_hub_id("name") and not is_hub_id("./a") and not is_hub_id("a/b/c")


def test_a_hub_id_reads_the_config_and_the_side_file(hub):
    side = {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    hub.files = {("owner/new", "config.json"): LLAMA, ("owner/new", "hf_quant_config.json"): side}
    parsed = load_model("owner/new")
    assert (parsed.model.params, parsed.model.name) == (PARAMS, "new")
    assert parsed.precision.text == "fp8_static,kv=fp8"
    assert {name for _, name in hub.asked} == {"config.json", "hf_quant_config.json"}


def test_a_hub_id_without_a_side_file(hub):
    hub.files = {("owner/new", "config.json"): LLAMA}
    assert load_model("owner/new").model.layer_runs == from_hf_config(LLAMA).model.layer_runs


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ("GatedRepoError", "log in"),
        ("RepositoryNotFoundError", "no repository 'owner/new'"),
        ("LocalEntryNotFoundError", "cannot be reached"),
        ("HfHubHTTPError", "cannot be read from the Hub"),
        ("ConnectionError", "cannot be read from the Hub"),
        ("EntryNotFoundError", r"has no config\.json"),
    ],
)
def test_what_the_hub_refuses_is_said_plainly(hub, error, said):
    hub.error = error
    with pytest.raises(SpecError, match=said):
        load_model("owner/new")


def test_without_the_extra_the_message_says_how_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)  # importing it now fails
    with pytest.raises(SpecError) as error:
        load_model("meta-llama/Llama-3.1-8X")
    assert "pip install 'roofline[hub]'" in str(error.value)
    assert "llama-3.1-8b" in str(error.value)  # and what is near in the library


def test_the_library_serves_its_own_hub_ids_without_the_hub(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert load_model("meta-llama/Llama-3.1-8B").model.params == PARAMS
