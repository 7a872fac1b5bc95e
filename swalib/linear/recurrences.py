"""The linearisation methods' recurrences over a text, each in three forms with its state in the open.

A recurrence takes queries, keys, values and gates, [b, h, t, ...] with the same h throughout (repeating kv
heads is the caller's business), and the state before them; it returns (o, state). `form` is how:

    "parallel"   all t tokens at once: t² products, for short texts and for reading
    "chunked"    `chunk_tokens` at once, the state handed from chunk to chunk: the default, linear in t
    "recurrent"  token by token, as the formula is written

The three agree to rounding, as does any split of a text whose parts hand the state over. States are fp32
(fp64 where q, k or v is) whatever the inputs, under autocast too. `inert` makes pads do nothing.

`impl="fla"` has flash-linear-attention's kernels compute the same on a GPU, or raises: nothing falls back.
"""

from swalib.linear._delta import delta_rule, rwkv7
from swalib.linear._diagonal import balanced_keys, diagonal_decay
from swalib.linear._forms import FORMS, State, inert
from swalib.linear._scalar import linear_attention, scalar_decay

__all__ = [
    "FORMS",
    "State",
    "balanced_keys",
    "delta_rule",
    "diagonal_decay",
    "inert",
    "linear_attention",
    "rwkv7",
    "scalar_decay",
]
