"""The operations of the CUDA extension, typed and checked; `tests/ext/reference*.py` define what each computes."""

from __future__ import annotations

from exlchat.ext.attention import Attention
from exlchat.ext.chain import ChainKernels
from exlchat.ext.exchange import ExchangeKernels
from exlchat.ext.experts import ExpertKernels
from exlchat.ext.gemm import RowProducts
from exlchat.ext.heads import HeadKernels
from exlchat.ext.library import Library
from exlchat.ext.many_draws import ManyDrawKernels
from exlchat.ext.pages import PageKernels
from exlchat.ext.products import Products
from exlchat.ext.prompt import PromptKernels
from exlchat.ext.prompt_attention import PromptAttention
from exlchat.ext.rounding import RoundingKernels
from exlchat.ext.sampling import SamplerKernels
from exlchat.ext.settle import SettleKernels


class Kernels(
    Products,
    RowProducts,
    ExpertKernels,
    SettleKernels,
    HeadKernels,
    Attention,
    SamplerKernels,
    ChainKernels,
    ManyDrawKernels,
    PromptKernels,
    PromptAttention,
    PageKernels,
    RoundingKernels,
    ExchangeKernels,
):
    def __init__(self, library: Library) -> None:
        Products.__init__(self, library)
        RowProducts.__init__(self, library)
        SettleKernels.__init__(self, library)
        HeadKernels.__init__(self, library)
        Attention.__init__(self, library)
        SamplerKernels.__init__(self, library)
        ChainKernels.__init__(self, library)
        ManyDrawKernels.__init__(self, library)
        PromptKernels.__init__(self, library)
        PromptAttention.__init__(self, library)
        PageKernels.__init__(self, library)
        ExpertKernels.__init__(self, library)
        RoundingKernels.__init__(self, library)
        ExchangeKernels.__init__(self, library)
