"""Adapter for Hugging Face transformers: `hf:TYPE?options` trains an architecture from its configuration.

TYPE is a model type (gpt2, llama, bert, t5, whisper, vit, ...), whose configuration class gives the defaults,
or a path to a config.json or its folder. Weights are random; nothing is downloaded. Any attribute of the
configuration may be set as an option (`num_hidden_layers=2`), nested ones with a dot
(`text_config.head_dim=64`).

Defaults: bf16 autocast, AdamW, sequences of 512 tokens or the model's longest where that is less, random
tokens, no attention mask (nothing is padded), labels equal to the tokens, no key-value cache, 1000 classes
for images. The task follows from the model type (see TASKS). Options besides those of every adapter: `task`,
`seq` (tokens of text), `size` (pixels), `classes`, `seconds` (of audio), `attention` (sdpa or eager), `data`
(parallel text for seq2seq, an image folder for images).
Source of models and configurations: https://github.com/huggingface/transformers
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from whichgpu.errors import WorkloadError
from whichgpu.workload import Workload, nearest
from whichgpu.zoo import training
from whichgpu.zoo.options import Options, read_settings
from whichgpu.zoo.real_data import Samples, image_folder, padded, parallel_text, stacked
from whichgpu.zoo.training import Recipe

DEFAULT_BATCH_SIZE = 8
DEFAULT_SEQUENCE = 512
SAMPLING_RATE = 16_000
_NO_LABEL = -100  # transformers' number for a place without a label
# Attributes that count or measure something a model is built of.
_COUNT = re.compile(r"^(n|num|d)_|_(size|dim|layers|heads|ratio)$")
# Position embeddings of these start behind the padding index, so their longest sequence is shorter than
# max_position_embeddings by padding index + 1 (transformers: create_position_ids_from_input_ids).
_OFFSET_POSITIONS = frozenset({
    "camembert", "data2vec-text", "esm", "ibert", "longformer", "luke", "mpnet",
    "roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod",
})  # fmt: skip


class Task(NamedTuple):
    """One kind of training: the class that builds models for it, and transformers' table of who has it."""

    auto_class: str
    mapping: str
    unit: str  # of speed
    inputs: str  # "text", "pair" (source and target text), "speech", "audio" or "image"


# In order of preference: the first that knows the model type is taken.
TASKS = {
    "speech-seq2seq": Task("AutoModelForSpeechSeq2Seq", "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES", "clips", "speech"),
    "seq2seq": Task("AutoModelForSeq2SeqLM", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES", "tokens", "pair"),
    "masked-lm": Task("AutoModelForMaskedLM", "MODEL_FOR_MASKED_LM_MAPPING_NAMES", "tokens", "text"),
    "causal-lm": Task("AutoModelForCausalLM", "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", "tokens", "text"),
    "image-classification": Task(
        "AutoModelForImageClassification", "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES", "images", "image"
    ),
    "ctc": Task("AutoModelForCTC", "MODEL_FOR_CTC_MAPPING_NAMES", "clips", "audio"),
    "sequence-classification": Task(
        "AutoModelForSequenceClassification",
        "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
        "sequences",
        "text",
    ),
    "token-classification": Task(
        "AutoModelForTokenClassification", "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES", "tokens", "text"
    ),
    "question-answering": Task(
        "AutoModelForQuestionAnswering", "MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES", "sequences", "text"
    ),
}


def build(target: str, options: Mapping[str, str], **about: Any) -> Workload:
    """The workload that trains a model type or a config.json; raises WorkloadError for what it cannot be."""
    plan = Plan(target, options)
    return make_workload(plan, plan.recipe(), **about)


def make_workload(plan: Plan, recipe: Recipe, **about: Any) -> Workload:
    """The workload of a plan with its recipe, or one made of it; `about` are fields of the Workload."""
    target = plan.target
    facts = {
        "unit": plan.task.unit,
        "items_per_sample": plan.sequence if plan.task.unit == "tokens" else 1,
        "default_batch_size": DEFAULT_BATCH_SIZE,
        "description": f"transformers {plan.model_type}, {plan.task_name}",
        "source_files": (Path(target),) if os.path.isabs(target) else (),
    }
    return training.make_workload(recipe, **{**facts, **about})


def make_recipe(target: str, options: Mapping[str, str]) -> Recipe:
    """Model, data and loss of the workload."""
    return Plan(target, options).recipe()


class Plan:
    """Options and configuration of one workload, read and checked; `recipe` makes its training of them."""

    def __init__(self, target: str, options: Mapping[str, str], where: str | None = None) -> None:
        base = read_config(target)
        self.target = target
        self.model_type: str = base["model_type"]
        self.where = where or (f"hf:{self.model_type}" if target == self.model_type else f"hf:{target}")
        reader = Options(self.where, options)
        self.settings = read_settings(reader, precision="bf16", optimizer="adamw")
        self.task_name = reader.choice("task", pick_task(base, self.where), TASKS)
        self.task = TASKS[self.task_name]
        if self.model_type not in getattr(modeling_auto, self.task.mapping):
            raise WorkloadError(f"{self.where}: {self.model_type} has no model for task={self.task_name}")
        self.attention = reader.choice("attention", "sdpa", ("sdpa", "eager"))
        sequence = reader.count("seq", 0)
        self.size = reader.count("size", 0)
        self.classes = reader.count("classes", 0)
        self.seconds = reader.count("seconds", 10)
        data = reader.text("data") if self.task.inputs in ("pair", "image") else None
        self.config = configure(base, reader)
        if self.classes:
            self.config.num_labels = self.classes
        elif self.task.inputs == "image" and "id2label" not in base:
            self.config.num_labels = 1000
        self.sequence = self._check_sequence(sequence)
        self.samples = self._read(data) if data is not None else None
        for config in (self.config, self.config.get_text_config()):
            config.use_cache = False
        if self.task_name == "sequence-classification" and self.config.pad_token_id is None:
            self.config.pad_token_id = 0  # decoders look for the last token before the padding
        if self.task.inputs in ("pair", "speech") and getattr(self.config, "decoder_start_token_id", None) is None:
            self.config.decoder_start_token_id = self.config.pad_token_id or 0  # T5's configuration has none

    def recipe(self) -> Recipe:
        """Model, data and loss."""
        if self.task.inputs == "image":
            self._fit_image_size()
        make_batch = {
            "text": self._text,
            "pair": self._text,
            "speech": self._speech,
            "audio": self._audio,
            "image": self._images,
        }
        return Recipe(
            where=self.where,
            settings=self.settings,
            make_model=self.make_model,
            make_batch=make_batch[self.task.inputs],
            compute_loss=lambda model, batch: model(**batch).loss,
            optimizer_arguments={},
            sizes=self.sizes(),
        )

    def sizes(self) -> dict[str, int]:
        """What a sample's size is set by, with its value."""
        by_input = {"text": {"seq": self.sequence}, "pair": {"seq": self.sequence}, "audio": {"seconds": self.seconds}}
        if self.task.inputs == "image":
            return {"size": self.size}
        return by_input.get(self.task.inputs, {})

    def make_model(self) -> torch.nn.Module:
        """The model of the task, with random weights."""
        return self.build_model(getattr(transformers, self.task.auto_class))

    def build_model(self, builder: Any) -> torch.nn.Module:
        """A model with random weights from an auto or model class; in bfloat16 at once where it trains so."""
        dtype = torch.bfloat16 if self.settings.precision == "pure-bf16" else torch.float32
        build = getattr(builder, "from_config", None) or builder._from_config
        try:
            return self._checkpointed(build(self.config, dtype=dtype, attn_implementation=self.attention))
        except (ImportError, ValueError, TypeError) as error:
            if "scaled_dot_product_attention" not in str(error):
                raise WorkloadError(f"{self.where}: cannot be built ({first_line(error)})") from error
        # An architecture without that attention takes the plain one, as transformers' own default does.
        return self._checkpointed(build(self.config, dtype=dtype, attn_implementation="eager"))

    def _checkpointed(self, model: torch.nn.Module) -> torch.nn.Module:
        if getattr(model, "loss_type", "") is None:
            model.loss_type = "ForCausalLM"  # what transformers falls back to, with a warning
        if self.settings.checkpoint:
            try:
                checkpoint(model)
            except ValueError as error:
                raise WorkloadError(f"{self.where}: {first_line(error)}; leave checkpoint out") from error
        return model

    def _check_sequence(self, asked: int) -> int:
        """Tokens of text: what was asked for, or the default; WorkloadError beyond the model's positions."""
        longest = longest_sequence(self.config, self.task)
        if longest is not None and asked > longest:
            raise WorkloadError(
                f"{self.where}: seq={asked} is longer than the model's {longest} positions; shorten it, or "
                "set max_position_embeddings as well"
            )
        return asked or min(DEFAULT_SEQUENCE, longest or DEFAULT_SEQUENCE)

    def _read(self, data: str) -> Samples:
        if self.task.inputs == "image":
            self._fit_image_size()
            return image_folder(data, self.where, (self.size, self.size), self.config.num_labels)
        vocabulary = self.config.get_text_config().vocab_size
        return parallel_text(data, self.where, vocabulary, self.sequence)

    def _sentences(self, samples: Samples, count: int, device: torch.device) -> dict[str, torch.Tensor]:
        sources, targets = (list(column) for column in zip(*samples.take(count), strict=True))
        tokens = padded(sources, device)
        mask = padded([[1] * len(sentence) for sentence in sources], device)
        return {"input_ids": tokens, "attention_mask": mask, "labels": padded(targets, device, _NO_LABEL)}

    def _tokens(self, count: int, device: torch.device) -> torch.Tensor:
        vocabulary = self.config.get_text_config().vocab_size
        return torch.randint(0, vocabulary, (count, self.sequence), device=device)

    def _text(self, count: int, device: torch.device, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        if self.samples is not None:
            return self._sentences(self.samples, count, device)
        tokens = self._tokens(count, device)
        labels = self.config.num_labels
        if self.task_name == "sequence-classification":
            return {"input_ids": tokens, "labels": torch.randint(0, labels, (count,), device=device)}
        if self.task_name == "token-classification":
            return {"input_ids": tokens, "labels": torch.randint(0, labels, tokens.shape, device=device)}
        if self.task_name == "question-answering":
            first, last = torch.randint(0, self.sequence, (2, count), device=device)
            return {"input_ids": tokens, "start_positions": first, "end_positions": last}
        return {"input_ids": tokens, "labels": tokens}

    def _speech(self, count: int, device: torch.device, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        frames = 2 * self.config.max_source_positions  # the encoder's convolutions halve the time axis
        shape = (count, self.config.num_mel_bins, frames)
        features = torch.randn(shape, device=device, dtype=dtype)
        return {"input_features": features, "labels": self._tokens(count, device)}

    def _audio(self, count: int, device: torch.device, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        wave = torch.randn(count, self.seconds * SAMPLING_RATE, device=device, dtype=dtype)
        letters = 10 * self.seconds  # about what is spoken; CTC needs fewer than the encoder's 50 frames a second
        labels = torch.randint(1, self.config.vocab_size, (count, letters), device=device)
        return {"input_values": wave, "labels": labels}

    def _images(self, count: int, device: torch.device, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        if self.samples is not None:
            pixels, labels = zip(*self.samples.take(count), strict=True)
            images = stacked(list(pixels), device, dtype, False)
            return {"pixel_values": images, "labels": torch.tensor(labels).to(device)}
        shape = (count, getattr(self.config, "num_channels", 3), self.size, self.size)
        images = torch.randn(shape, device=device, dtype=dtype)
        return {
            "pixel_values": images,
            "labels": torch.randint(0, self.config.num_labels, (count,), device=device),
        }

    def _fit_image_size(self) -> None:
        own = getattr(self.config, "image_size", None)
        own = own[0] if isinstance(own, (list, tuple)) else own
        if self.size and own is not None:
            self.config.image_size = self.size
        self.size = self.size or own or 224


def checkpoint(model: Any) -> None:
    """Have a model of transformers compute activations again in the backward pass; ValueError where it cannot."""
    # Renamed within transformers 5; the old name warns in newer versions.
    enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
    enable({"use_reentrant": False})


# ---- configurations ----


def read_config(target: str) -> dict[str, Any]:
    """The configuration as a dictionary that holds at least `model_type`; file or model type, no network."""
    if not os.path.isabs(target):
        if target not in CONFIG_MAPPING_NAMES:
            folder = f"; for the folder of that name write hf:./{target}" if Path(target).is_dir() else ""
            raise WorkloadError(
                f"hf:{target}: transformers {transformers.__version__} has no model type {target}"
                f"{folder or nearest(target, CONFIG_MAPPING_NAMES)}"
            )
        return {"model_type": target}
    try:
        config = json.loads(Path(target).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise WorkloadError(f"hf:{target}: not a readable config.json ({error})") from error
    if not isinstance(config, dict) or config.get("model_type") not in CONFIG_MAPPING_NAMES:
        kind = config.get("model_type") if isinstance(config, dict) else None
        raise WorkloadError(
            f"hf:{target}: model_type {kind!r} is not one of transformers {transformers.__version__}; "
            "a model with code of its own needs a file with setup(device)"
        )
    return config


def pick_task(config: Mapping[str, Any], where: str) -> str:
    """The task of the configuration's `architectures`, or the first of TASKS that knows the model type."""
    model_type = config["model_type"]
    known = {name: getattr(modeling_auto, task.mapping).get(model_type) for name, task in TASKS.items()}
    for name, classes in known.items():
        if classes and set([classes] if isinstance(classes, str) else classes) & set(config.get("architectures") or ()):
            return name
    for name, classes in known.items():
        if classes:
            return name
    raise WorkloadError(
        f"{where}: no training step is built in for {model_type} (tasks: {', '.join(TASKS)}); "
        "write a file with setup(device)"
    )


def configure(base: Mapping[str, Any], reader: Options) -> Any:
    """The configuration with the remaining options set in it; raises WorkloadError for unknown attributes."""
    model_type = base["model_type"]
    given = {key: value for key, value in base.items() if key != "model_type"}
    default = _for_model(model_type, given, reader.where)
    changes = dict(given)
    for key, text in reader.rest().items():
        parent, _, leaf = key.rpartition(".")
        holder = getattr(default, parent, None) if parent else default
        if holder is None or leaf.startswith("_") or not hasattr(holder, leaf) or callable(getattr(holder, leaf)):
            raise reader.unknown(key, default.to_dict())
        usual = getattr(holder, leaf)
        value = _convert(text, usual, f"{reader.where}: {key}={text}")
        _check_count(leaf, value, usual, f"{reader.where}: {key}={text}")
        if parent:
            nested = changes.get(parent) or {"model_type": holder.model_type}
            changes[parent] = {**nested, leaf: value}
        else:
            changes[key] = value
    return _for_model(model_type, _cut_layers(changes, default), reader.where)


def _for_model(model_type: str, values: Mapping[str, Any], where: str) -> Any:
    try:
        return transformers.AutoConfig.for_model(model_type, **values)
    except Exception as error:  # whatever a configuration class checks of its values
        raise WorkloadError(f"{where}: configuration refused ({first_line(error)})") from error


def _cut_layers(changes: dict[str, Any], default: Any) -> dict[str, Any]:
    """A list with one entry a layer, cut or continued by repetition to a changed number of layers."""
    layers = changes.get("num_hidden_layers")
    types = changes.get("layer_types")
    if isinstance(layers, int) and isinstance(types, list) and types and len(types) != layers:
        return {**changes, "layer_types": [types[index % len(types)] for index in range(layers)]}
    return changes


def _convert(text: str, default: Any, where: str) -> Any:
    """An option in the type of the attribute's default; an attribute that is None takes any JSON value."""
    switches = {"1": True, "true": True, "0": False, "false": False}
    if isinstance(default, bool):
        if text.lower() not in switches:
            raise WorkloadError(f"{where} is not true or false")
        return switches[text.lower()]
    if isinstance(default, str):
        return text
    try:
        value = json.loads(text.replace("None", "null"))
    except ValueError:
        value = text
    wanted: dict[type, tuple[type, ...]] = {
        int: (int,),
        float: (int, float),
        list: (list, int),
        dict: (dict,),
    }
    allowed = wanted.get(type(default))
    if allowed and not (isinstance(value, allowed) and not isinstance(value, bool)):
        raise WorkloadError(f"{where} is not of type {type(default).__name__} (its default is {default})")
    return float(value) if isinstance(default, float) else value


def _check_count(name: str, value: Any, default: Any, where: str) -> None:
    """A count or width that is 0 or less builds a model without layers, or none at all, and no class looks."""
    usual = default is None or (isinstance(default, int) and default > 0)
    if usual and _COUNT.search(name) and isinstance(value, int) and not isinstance(value, bool) and value < 1:
        raise WorkloadError(f"{where} is not a whole number of 1 or more")


def longest_sequence(config: Any, task: Task) -> int | None:
    """Tokens that the model has positions for; None where its configuration sets no bound."""
    if task.inputs == "speech":
        return getattr(config, "max_target_positions", None)
    if task.inputs in ("image", "audio"):
        return None
    text = config.get_text_config()
    positions = getattr(text, "max_position_embeddings", None)
    if not isinstance(positions, int) or positions < 1:
        return None
    if config.model_type in _OFFSET_POSITIONS and config.pad_token_id is not None:
        return positions - config.pad_token_id - 1
    return positions


def first_line(error: BaseException) -> str:
    """An error's message in one line."""
    return " ".join(str(error).split())[:200]
