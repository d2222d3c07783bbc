"""One vocabulary for the tensors of all architectures: Llama's, and a few names that Llama has no tensor for.

Layers are `model.layers.N.`, with `input_layernorm`, `self_attn.{q,k,v,o}_proj` or `self_attn.qkv_proj`,
`attention_post_norm`, `post_attention_layernorm`, `mlp.{gate,up,down}_proj` or `mlp.gate_up_proj`, `mlp_post_norm`, and
where there are experts `mlp.router`, `mlp.experts.N.` and `mlp.shared_expert.`; around them stand `model.embed_tokens`,
`model.embed_positions`, `model.norm` and `lm_head`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from exlchat.engine.model.families import FAMILIES, family_of
from exlchat.engine.model.family import Family, Renames

_LAYER = re.compile(r"(?:model\.layers|transformer\.h|h)\.(\d+)\.(.+)")
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
_ANY = "*"
_OF_TEXT = ("model.", "lm_head.")
_OF_IMAGES = ("model.vision", "model.visual.", "model.multi_modal_projector.", "model.image_newline")


class TensorNames:
    """The names in a model's files -> ours.

    Args:
        config: the content of `config.json`. Of an architecture that is not known, names stay as they are.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        architectures = config.get("architectures")
        name = architectures[0] if isinstance(architectures, list) and architectures else None
        outer = FAMILIES.get(name) if isinstance(name, str) else None
        self._with_images = outer is not None and outer.text_model is not None
        self._family = family_of(config) or Family()
        self._outer = (outer or Family()).outer_names
        self._in_layers = [(_pattern(old), new) for old, new in self._family.layer_names]

    def ours(self, name: str) -> str | None:
        """What a tensor is called here; `None` for one that is no weight of the decoder."""
        name = _renamed(name, self._outer)
        if self._with_images and (not name.startswith(_OF_TEXT) or name.startswith(_OF_IMAGES)):
            return None
        layer = _LAYER.fullmatch(name)
        if layer is None:
            return _renamed(name, self._family.outer_names)
        rest = layer[2]
        for pattern, new in self._in_layers:
            found = pattern.match(rest)
            if found is not None:
                if not new:
                    return None
                rest = new.replace("*", found[1] if found.re.groups else "") + rest[found.end() :]
                break
        return f"model.layers.{layer[1]}.{rest}"

    def theirs(self, name: str, stored: Mapping[str, str]) -> str:
        """What the files would call a tensor that they lack: as they call that of another layer, or another tensor of
        its module, or as the family does.

        Args:
            name: ours.
            stored: our names of those that are there -> theirs.
        """
        form, last = _without_numbers(name), name.rpartition(".")[2]
        forms = {_without_numbers(ours): shown for ours, shown in stored.items()}
        if form in forms:
            return _numbered(forms[form], name)
        modules = {_module(other): _module(shown) for other, shown in forms.items()}
        if _module(form) in modules:
            return _numbered(f"{modules[_module(form)]}.{last}", name)
        layer = _LAYER.fullmatch(name)
        return self._of_layer(name, layer[2], forms) if layer is not None else self._of_ends(name, stored)

    def _of_layer(self, name: str, rest: str, forms: Mapping[str, str]) -> str:
        for old, new in self._family.layer_names:
            found = _pattern(new).match(rest) if new else None
            if found is not None:
                rest = old.replace("*", found[1] if found.re.groups else "") + rest[found.end() :]
                break
        shown = next((shown for form, shown in forms.items() if _LAYER.fullmatch(form.replace(_ANY, "0", 1))), None)
        number = None if shown is None else _NUMBER.search(shown)
        return name if shown is None or number is None else _numbered(f"{shown[: number.end()]}.{rest}", name)

    def _of_ends(self, name: str, stored: Mapping[str, str]) -> str:
        """By the spelling whose first part is that of other tensors."""
        roots = {shown.partition(".")[0] for shown in stored.values()}
        for old, new in (*self._outer, *self._family.outer_names):
            root, _, inside = old.rstrip(".").partition(".")
            if name.startswith(new) and (root in roots or not inside):
                return old + name[len(new) :]
        return name


def _pattern(name: str) -> re.Pattern[str]:
    """Of a name that ends here or goes on behind a dot; `*` stands for a number."""
    return re.compile(re.escape(name).replace(r"\*", r"(\d+)") + r"(?=\.|$)")


def _module(name: str) -> str:
    return name.rpartition(".")[0]


def _without_numbers(name: str) -> str:
    return _NUMBER.sub(_ANY, name)


def _numbered(shown: str, name: str) -> str:
    """`shown` with the numbers of layer and expert that `name` has."""
    numbers = iter(_NUMBER.findall(name))
    return _NUMBER.sub(lambda found: next(numbers, found[0]), shown)


def _renamed(name: str, renames: Renames) -> str:
    """By the first beginning that fits."""
    for old, new in renames:
        if name.startswith(old):
            return new + name[len(old) :]
    return name
