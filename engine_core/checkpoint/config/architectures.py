"""Which architectures can be served, and which reader handles the config.json of each."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from splitserve.engine_core.checkpoint.config.classifier import Classifier, HeadTraits, read_classifier
from splitserve.engine_core.checkpoint.config.common_fields import open_config
from splitserve.engine_core.checkpoint.config.encoders.bert import read_bert, read_roberta
from splitserve.engine_core.checkpoint.config.encoders.modernbert import modernbert_head, read_modernbert
from splitserve.engine_core.checkpoint.config.encoders.nomic_bert import read_nomic_bert
from splitserve.engine_core.checkpoint.config.families.any_decoder import is_causal_name, read_any_decoder
from splitserve.engine_core.checkpoint.config.families.cohere import read_cohere, read_cohere2
from splitserve.engine_core.checkpoint.config.families.gemma import read_gemma2, read_gemma3
from splitserve.engine_core.checkpoint.config.families.glm import read_glm, read_glm4
from splitserve.engine_core.checkpoint.config.families.gpt2 import read_gpt2
from splitserve.engine_core.checkpoint.config.families.granite import read_granite, read_granite_moe
from splitserve.engine_core.checkpoint.config.families.llama import read_llama
from splitserve.engine_core.checkpoint.config.families.mistral import read_mistral, read_mixtral
from splitserve.engine_core.checkpoint.config.families.olmo import read_olmo2, read_olmo3, read_olmoe
from splitserve.engine_core.checkpoint.config.families.phi3 import read_phi3
from splitserve.engine_core.checkpoint.config.families.qwen import (
    read_qwen2,
    read_qwen2_moe,
    read_qwen3,
    read_qwen3_moe,
)
from splitserve.engine_core.checkpoint.config.families.seed_oss import read_seed_oss
from splitserve.engine_core.checkpoint.config.families.smollm3 import read_smollm3
from splitserve.engine_core.checkpoint.config.families.sparse.deepseek import (
    read_deepseek_v2,
    read_deepseek_v3,
)
from splitserve.engine_core.checkpoint.config.families.sparse.gpt_oss import read_gpt_oss
from splitserve.engine_core.checkpoint.config.families.starcoder2 import read_starcoder2
from splitserve.engine_core.checkpoint.config.fields import Fields
from splitserve.engine_core.checkpoint.config.model_config import ModelConfig
from splitserve.engine_core.checkpoint.gguf.architectures import find_architecture
from splitserve.engine_core.checkpoint.gguf.gguf_file import is_gguf, read_contents
from splitserve.engine_core.checkpoint.quantization.reader import read_quantization
from splitserve.engine_core.errors import ModelLoadError


class Architecture(NamedTuple):
    """One entry of the registry.

    Attributes:
        model_type: the required value of the field of that name, if it is present. Otherwise libraries that
            choose a model by its type would run a different one with these weights.
        read: function of directory, architecture and fields that returns the config.
        may_be_quantized: read() deals with quantization_config.
        other_types: values of model_type that mean the same model.
    """

    model_type: str
    read: Callable[[Path, str, Fields], ModelConfig]
    may_be_quantized: bool = False
    other_types: tuple[str, ...] = ()


class Classifies(NamedTuple):
    """An architecture with a head for labels.

    Attributes:
        base: the name of the one with the same layers.
        head: of all such models, or a function of the fields that returns it.
    """

    base: str
    head: HeadTraits | Callable[[Fields], HeadTraits]

    def read(self, config: Fields) -> Classifier:
        """Return the head and its labels."""
        return read_classifier(config, self.head(config) if callable(self.head) else self.head)


ARCHITECTURES = {
    "BertModel": Architecture("bert", read_bert),
    "CohereForCausalLM": Architecture("cohere", read_cohere),
    "Cohere2ForCausalLM": Architecture("cohere2", read_cohere2),
    "DeepseekV2ForCausalLM": Architecture("deepseek_v2", read_deepseek_v2),
    "DeepseekV3ForCausalLM": Architecture("deepseek_v3", read_deepseek_v3, other_types=("kimi_k2",)),
    "Gemma2ForCausalLM": Architecture("gemma2", read_gemma2),
    "Gemma3ForCausalLM": Architecture("gemma3_text", read_gemma3),
    "GlmForCausalLM": Architecture("glm", read_glm),
    "Glm4ForCausalLM": Architecture("glm4", read_glm4),
    "GPT2LMHeadModel": Architecture("gpt2", read_gpt2),
    "GptOssForCausalLM": Architecture("gpt_oss", read_gpt_oss, may_be_quantized=True),
    "GraniteForCausalLM": Architecture("granite", read_granite),
    "GraniteMoeForCausalLM": Architecture("granitemoe", read_granite_moe),
    "GraniteMoeSharedForCausalLM": Architecture("granitemoeshared", read_granite_moe),
    "LlamaForCausalLM": Architecture("llama", read_llama),
    "MistralForCausalLM": Architecture("mistral", read_mistral),
    "MixtralForCausalLM": Architecture("mixtral", read_mixtral),
    "ModernBertModel": Architecture("modernbert", read_modernbert),
    "NomicBertModel": Architecture("nomic_bert", read_nomic_bert),
    "Olmo2ForCausalLM": Architecture("olmo2", read_olmo2),
    "Olmo3ForCausalLM": Architecture("olmo3", read_olmo3),
    "OlmoeForCausalLM": Architecture("olmoe", read_olmoe),
    "Phi3ForCausalLM": Architecture("phi3", read_phi3),
    "Qwen2ForCausalLM": Architecture("qwen2", read_qwen2),
    "Qwen2MoeForCausalLM": Architecture("qwen2_moe", read_qwen2_moe),
    "Qwen3ForCausalLM": Architecture("qwen3", read_qwen3),
    "Qwen3MoeForCausalLM": Architecture("qwen3_moe", read_qwen3_moe),
    "RobertaModel": Architecture("roberta", read_roberta),
    "SeedOssForCausalLM": Architecture("seed_oss", read_seed_oss),
    "SmolLM3ForCausalLM": Architecture("smollm3", read_smollm3),
    "Starcoder2ForCausalLM": Architecture("starcoder2", read_starcoder2),
    "XLMRobertaModel": Architecture("xlm-roberta", read_roberta),
}
"""By the name in `architectures`, in the order in which errors list them."""

_LAST = HeadTraits(pooling="lasttoken", output="score", output_bias=False)
_DENSE = HeadTraits(dense="classifier.dense", output="classifier.out_proj")
CLASSIFIERS = {
    "BertForSequenceClassification": Classifies("BertModel", HeadTraits(dense="bert.pooler.dense")),
    "LlamaForSequenceClassification": Classifies("LlamaForCausalLM", _LAST),
    "MistralForSequenceClassification": Classifies("MistralForCausalLM", _LAST),
    "ModernBertForSequenceClassification": Classifies("ModernBertModel", modernbert_head),
    "Qwen2ForSequenceClassification": Classifies("Qwen2ForCausalLM", _LAST),
    "Qwen3ForSequenceClassification": Classifies("Qwen3ForCausalLM", _LAST),
    "RobertaForSequenceClassification": Classifies("RobertaModel", _DENSE),
    "XLMRobertaForSequenceClassification": Classifies("XLMRobertaModel", _DENSE),
}
"""Those with a head for labels, likewise."""

# Names without a head for text that do not follow from the ones above. Encoders need not lack the head that
# they were trained with.
_OTHER_BARE = {
    "BertForMaskedLM": "BertModel",
    "GPT2Model": "GPT2LMHeadModel",
    "Gemma3TextModel": "Gemma3ForCausalLM",
    "ModernBertForMaskedLM": "ModernBertModel",
    "RobertaForMaskedLM": "RobertaModel",
    "XLMRobertaForMaskedLM": "XLMRobertaModel",
}

# Fields that would make any architecture a different model.
_REFUSED = {
    "per_layer_config": "all layers have the same sizes",
}


def read_model_config(directory: str | Path, model_impl: str = "auto") -> ModelConfig:
    """Read and check config.json and generation_config.json of a checkpoint directory.

    Args:
        directory: of the checkpoint.
        model_impl: whose layers: "native" for those of this project, "transformers" for the library's of that
            name, "auto" for these where there are no others.

    Raises:
        ModelLoadError: names the file and the field that is missing, out of range or not supported, or the
            architecture if it is unknown.
    """
    path = Path(directory)
    config = open_config(path)
    if model_impl == "transformers" and is_gguf(path):
        raise ModelLoadError(f"{path}: GGUF files are not served by --model-impl transformers")
    name, architecture = _architecture(config, model_impl)
    for field, reason in _REFUSED.items():
        if config.has(field):
            raise config.unwanted(field, reason)
    model = architecture.read(path, name, config)
    # null counts as false here.
    if model.encoder is None and (config.is_null("is_causal") or not config.boolean("is_causal", True)):
        raise config.error("is_causal", "must be true or absent: this architecture is served as a decoder")
    classifier = CLASSIFIERS[name].read(config) if name in CLASSIFIERS else None
    if architecture.may_be_quantized and config.has("compression_config"):
        raise config.unwanted(
            "compression_config", "quantization_config says how this architecture is quantized"
        )
    quantization = None if architecture.may_be_quantized else read_quantization(path, config)
    if quantization is not None and (model.family == "transformers" or model.encoder is not None):
        problem = f"({quantization.method}) is supported for native architectures of decoders only"
        raise config.error("quantization_config", problem)
    model = msgspec.structs.replace(
        model,
        classifier=classifier,
        quantization=quantization,
        has_custom_code=config.has("auto_map"),
    )
    return _as_gguf_stores_it(model) if is_gguf(path) else model


def _as_gguf_stores_it(model: ModelConfig) -> ModelConfig:
    stored, _ = find_architecture(read_contents(Path(model.path)))
    attention = msgspec.structs.replace(
        model.traits.attention, is_rotary_interleaved=stored.is_rotary_interleaved
    )
    return msgspec.structs.replace(model, traits=msgspec.structs.replace(model.traits, attention=attention))


def is_bare(architecture: str) -> bool:
    """Whether this is the name of an architecture without a head for text, as embedding models have it."""
    return not is_causal_name(architecture) and not architecture.endswith("LMHeadModel")


def _find(name: str) -> Architecture | None:
    if name in CLASSIFIERS:
        return ARCHITECTURES[CLASSIFIERS[name].base]
    whole = _OTHER_BARE.get(name) or re.sub("Model$", "ForCausalLM", name)
    return ARCHITECTURES.get(name) or ARCHITECTURES.get(whole)


def _architecture(config: Fields, model_impl: str) -> tuple[str, Architecture]:
    names = config.texts("architectures")
    if model_impl != "transformers":
        for name in names:
            found = _find(name)
            if found is not None:
                _check_model_type(config, name, (found.model_type, *found.other_types))
                return name, found
    if model_impl != "native":
        for name in filter(is_causal_name, names):
            # Whether it belongs to the name is for the library to say.
            return name, Architecture(config.text("model_type", ""), read_any_decoder)
    asked = ", ".join(map(repr, names[:4]))[:200] or "none"
    error = config.error("architectures", f"names {asked}, which is not supported")
    # Apart, as what is quoted of a file is cut, and this list is longer.
    known = f"supported architectures: {', '.join((*ARCHITECTURES, *CLASSIFIERS))}"
    others = "; other decoders (...ForCausalLM) are served by --model-impl auto or transformers"
    raise ModelLoadError(f"{error}; {known}{others}")


def _check_model_type(config: Fields, architecture: str, expected: tuple[str, ...]) -> None:
    found = config.text("model_type", expected[0])
    if found not in expected:
        wanted = " or ".join(map(repr, expected))
        raise config.error("model_type", f"must be {wanted} for {architecture}, got {found!r}")
