"""Feedback ids for three families of chat templates, on small tokenizers made here: nothing is downloaded."""

import json
import pathlib

import pytest

from rljob_api import errors
from rljob_testing import models
from rljob_workers.rollout import prompts, tokenizer

_EACH = "{% for m in messages %}"
_END = "{% endfor %}"
# Template, BOS, EOS, special tokens, and what must be between an answer and the next.
FAMILIES: dict[str, tuple[str, str, str, tuple[str, ...], str]] = {
    "chatml": (
        "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nBe good.<|im_end|>\n{% endif %}"
        + _EACH
        + "<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
        + _END
        + "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
        "<|endoftext|>",
        "<|im_end|>",
        ("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
        "\n<|im_start|>user\nagain<|im_end|>\n<|im_start|>assistant\n",
    ),
    "llama3": (
        "{{ bos_token }}" + _EACH + "<|start_header_id|>{{ m['role'] }}<|end_header_id|>\n\n"
        "{{ m['content'] }}<|eot_id|>"
        + _END
        + "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}",
        "<|begin_of_text|>",
        "<|eot_id|>",
        ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        "<|start_header_id|>user<|end_header_id|>\n\nagain<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
    "sentencepiece": (
        "{{ bos_token }}" + _EACH + "<|{{ m['role'] }}|>\n{{ m['content'] }}</s>\n" + _END
        + "{% if add_generation_prompt %}<|assistant|>\n{% endif %}",
        "<s>",
        "</s>",
        ("<s>", "</s>"),
        "\n<|user|>\nagain</s>\n<|assistant|>\n",
    ),
}  # fmt: skip


def make(folder: pathlib.Path, family: str) -> tokenizer.PromptTokenizer:
    from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
    from tokenizers import models as kinds

    template, bos, eos, special, _ = FAMILIES[family]
    if family == "sentencepiece":
        alphabet = [f"<0x{byte:02X}>" for byte in range(256)]
        vocabulary = {token: index for index, token in enumerate((*special, *alphabet, "\u2581"))}
        made = Tokenizer(kinds.BPE(vocab=vocabulary, merges=[], byte_fallback=True))
        made.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    else:
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        made = Tokenizer(kinds.BPE(vocab={t: i for i, t in enumerate((*special, *alphabet))}, merges=[]))
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    folder.mkdir(exist_ok=True)
    made.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": bos,
        "eos_token": eos,
        "clean_up_tokenization_spaces": False,
        "chat_template": template,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return tokenizer.PromptTokenizer(folder, template="chat")


@pytest.mark.covers("workflows 5.1")
@pytest.mark.parametrize("family", FAMILIES)
def test_feedback_is_one_user_turn_without_system_prompt_or_bos(family: str, tmp_path: pathlib.Path) -> None:
    tokens = make(tmp_path / family, family)
    text = tokens.decode_exact(tokens.feedback_ids("again"))
    assert text == FAMILIES[family][4]
    assert FAMILIES[family][1] not in text
    assert "Be good." not in text


@pytest.mark.covers("workflows 5.1")
def test_a_template_that_rewrites_earlier_turns_is_refused_with_both_renderings() -> None:
    with pytest.raises(errors.ManifestError, match=r"renders as 'A<e>' and with feedback as 'B<e>u'"):
        prompts.text_between_turns("A<e>", "B<e>u", eos="<e>")


def test_a_template_that_does_not_close_answers_is_refused() -> None:
    with pytest.raises(errors.ManifestError, match="closed by '<e>'"):
        prompts.text_between_turns("A", "Au", eos="<e>")


def test_a_tokenizer_without_chat_template_is_refused(tmp_path: pathlib.Path) -> None:
    models.make_tiny_tokenizer(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    del config["chat_template"]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(errors.ManifestError, match="no chat template"):
        tokenizer.PromptTokenizer(tmp_path, template="raw").feedback_ids("again")
