"""Names of tokens, and which tokens DRY and XTC leave alone."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

import exlchat
from exlchat.engine import SamplingSettings
from exlchat.engine.sampling import Sampler, TokenTexts, check_sampling
from exlchat.engine.text.tokenizer_alone import TokenizerAlone

GUIDE = Path(exlchat.__file__).parent / "models" / "guide"


@pytest.fixture(scope="module")
def tokenizer() -> TokenizerAlone:
    return TokenizerAlone(GUIDE)


@pytest.fixture(scope="module")
def special(tokenizer: TokenizerAlone) -> set[int]:
    return {tokenizer.encode(token)[0] for token in tokenizer.info.special_tokens}


@pytest.fixture(scope="module")
def texts(tokenizer: TokenizerAlone, special: set[int]) -> TokenTexts:
    return TokenTexts(
        tokenizer.info.vocab_size,
        lambda token: tokenizer.decode([token], special=True),
        partial(tokenizer.encode, special=False),
        special,
    )


def test_breakers_are_what_holds_one_and_special_tokens(
    texts: TokenTexts, tokenizer: TokenizerAlone, special: set[int]
) -> None:
    found = texts.breakers(("\n", ":"))
    for token in range(texts.size):
        text = tokenizer.decode([token], special=True)
        assert found[token] == ("\n" in text or ":" in text or token in special), text
    assert texts.breakers(("\n", ":")) is found
    assert texts.protected().tolist() == texts.breakers(("\n",)).tolist()
    assert set(texts.breakers(()).nonzero()[0]) == special


def test_tokens_are_named_by_id_or_text(texts: TokenTexts, tokenizer: TokenizerAlone) -> None:
    (the,) = tokenizer.encode(" the", special=False)
    assert texts.token(" the") == texts.token(the) == the
    sampling = SamplingSettings(0.0, banned_tokens=(" the", 7), logit_bias=((" the", 1.0),))
    check_sampling(sampling, texts)
    Sampler(sampling, 0, texts)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"banned_tokens": (10**9,)}, "banned_tokens: there is no token 1000000000; the ids of this model are 0 to "),
        ({"logit_bias": ((10**9, 1.0),)}, "logit_bias: there is no token 1000000000"),
        ({"banned_tokens": ("one two three four",)}, "tokens of this model; it must be one (or name its id)"),
        ({"banned_tokens": ("x\ny" * 500,)}, "banned_tokens: 'x\\ny"),
    ],
)
def test_a_token_that_does_not_exist_is_named(texts: TokenTexts, fields: dict[str, Any], words: str) -> None:
    sampling = SamplingSettings(**fields)
    for refuse in (lambda: check_sampling(sampling, texts), lambda: Sampler(sampling, 0, texts)):
        with pytest.raises(ValueError) as error:
            refuse()
        assert words in str(error.value)
        assert len(str(error.value)) < 200
        assert "\n" not in str(error.value)


def test_one_token_has_one_bias(texts: TokenTexts) -> None:
    with pytest.raises(ValueError, match="named twice"):
        check_sampling(SamplingSettings(logit_bias=((" the", 1.0), (texts.token(" the"), 2.0))), texts)


def test_without_texts_a_text_names_nothing() -> None:
    with pytest.raises(ValueError, match="name the token by its id"):
        Sampler(SamplingSettings(banned_tokens=("a",)), 0)
