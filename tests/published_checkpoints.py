"""What authors would publish for the tiny models, by the shapes in their released sources, and the students
that it should make, put together by hand."""

import re

import torch

from swalib import convert
from swalib.linear.liger import LigerConfig
from swalib.linear.lolcats import LoLCATsConfig
from swalib.linear.mamba2 import LlambaConfig
from swalib.linear.qrwkv6 import QRWKV6Config
from swalib.linear.qrwkv7 import QRWKV7Config

LAYERS, HIDDEN, HEADS, KV, D = 3, 36, 4, 2, 10  # of the tiny Llama, Qwen2 and Qwen3
WIDTH, R = 3, 5
CONFIGS = {
    "lolcats": LoLCATsConfig(window=4, terraced=True, width=WIDTH),
    "liger": LigerConfig(window=4),
    "qrwkv6": QRWKV6Config(shift_rank=3, decay_rank=7),
    "qrwkv7": QRWKV7Config(decay_rank=3, rate_rank=7, value_rank=11, gate_rank=13),
    "llamba": LlambaConfig(state_size=7),
}
TEACHERS = {"lolcats": "llama", "liger": "llama", "qrwkv6": "qwen2", "qrwkv7": "qwen2", "llamba": "llama"}


def filled(shapes, seed=0):
    """Tensors of these shapes, all different, small enough for the models to stay in range."""
    generator = torch.Generator().manual_seed(seed)
    return {name: 0.2 * torch.randn(*shape, generator=generator) for name, shape in shapes.items()}


def backbone(teacher):
    """Names and shapes of what a linearised model keeps: embeddings, norms, MLPs, head."""
    names = teacher.state_dict().items()
    return {name: tuple(x.shape) for name, x in names if ".self_attn." not in name}


def projections(biases):
    shapes = {"q_proj.weight": (HEADS * D, HIDDEN), "o_proj.weight": (HIDDEN, HEADS * D)}
    shapes |= {f"{n}_proj.weight": (KV * D, HIDDEN) for n in "kv"}
    if biases:
        shapes |= {"q_proj.bias": (HEADS * D,), "k_proj.bias": (KV * D,), "v_proj.bias": (KV * D,)}
    return shapes


def in_layers(shapes, place="model.layers.{}.self_attn."):
    return {place.format(n) + name: shape for n in range(LAYERS) for name, shape in shapes.items()}


def lolcats_maps():
    shapes = {f"feature_map_{n}.mlp.layer": (HEADS, D, WIDTH) for n in "qk"}
    return filled(in_layers(shapes | {"window_factors": (1, HEADS, 1, 1)}))


def lolcats_updates():
    out_in = {name.removesuffix(".weight"): shape for name, shape in projections(False).items()}
    shapes = {f"{name}.lora_A.default.weight": (R, shape[1]) for name, shape in out_in.items()}
    shapes |= {f"{name}.lora_B.default.weight": (shape[0], R) for name, shape in out_in.items()}
    return filled(in_layers(shapes, "base_model.model.model.layers.{}.self_attn."), seed=1)


def qrwkv6():
    """TMix_qwen2rwkv6: hidden_size is also the width of all heads there; here they differ on purpose."""
    shapes = projections(True) | {f"time_maa_{c}": (1, 1, HIDDEN) for c in "xrkvwg"}
    shapes |= {"time_maa_w1": (HIDDEN, 5 * 3), "time_maa_w2": (5, 3, HIDDEN)}
    shapes |= {"time_decay": (1, 1, HEADS * D), "time_decay_w1": (HIDDEN, 7), "time_decay_w2": (7, HEADS * D)}
    return shapes | {"gate.weight": (HEADS * D, HIDDEN)}


def qrwkv7():
    """RWKV7Attention, with what its forward leaves out: v0, v1, v2 in layer 0, k_k, k_a, r_k in all."""
    shapes = projections(True)
    for name, rank in (("w", 3), ("a", 7), ("v", 11), ("g", 13)):
        shapes |= {f"{name}1": (HIDDEN, rank), f"{name}2": (rank, HEADS * D)}
        shapes |= {} if name == "g" else {f"{name}0": (1, 1, HEADS * D)}
    return shapes | {"k_k": (1, 1, HEADS * D), "k_a": (1, 1, HEADS * D), "r_k": (HEADS, D)}


X, QK = HEADS * D, HEADS * 7
CONV = X + 2 * QK


def llamba():
    """DiscreteMamba2: in_proj's rows are x, B, C, z, a."""
    shapes = {"in_proj.weight": (CONV + X + HEADS, HIDDEN), "out_proj.weight": (HIDDEN, X)}
    return shapes | {"z_bias": (X,), "D": (HEADS,), "conv1d.weight": (CONV, 1, 4), "conv1d.bias": (CONV,)}


def checkpoint(method, teacher):
    """What the authors would publish for this teacher."""
    kept = backbone(teacher)
    if method == "lolcats":
        return lolcats_maps() | lolcats_updates()
    if method == "liger":
        return filled(kept | in_layers(projections(False)))
    if method == "llamba":
        kept = {k.replace("model.embed_tokens", "backbone.embedding"): s for k, s in kept.items()}
        kept = {re.sub(r"^model\.norm", "backbone.final_layernorm", k): s for k, s in kept.items()}
        kept = {re.sub(r"^model\.", "backbone.", k): s for k, s in kept.items()}
        return filled(kept | in_layers(llamba(), "backbone.layers.{}.mixer."))
    return filled(kept | in_layers(qrwkv6() if method == "qrwkv6" else qrwkv7()))


def by_hand(method, teacher, theirs):
    """The student those weights should make, each put into its module by a line of its own."""
    student = convert(teacher, CONFIGS[method], share=False)
    with torch.no_grad():
        for n, layer in enumerate(student.model.layers):
            HANDS[method](layer.self_attn, theirs, n)
        if method != "lolcats":
            keep(student, theirs)
    return student


def keep(student, theirs):
    """Everything outside of the mixers."""
    names = (
        {"embed_tokens": "embedding", "norm": "final_layernorm"}
        if "backbone.embedding.weight" in theirs
        else {}
    )
    root = "backbone" if names else "model"
    student.lm_head.weight.copy_(theirs["lm_head.weight"])
    for part in ("embed_tokens", "norm"):
        getattr(student.model, part).weight.copy_(theirs[f"{root}.{names.get(part, part)}.weight"])
    for n, layer in enumerate(student.model.layers):
        for name, parameter in layer.named_parameters():
            if not name.startswith("self_attn."):
                parameter.copy_(theirs[f"{root}.layers.{n}.{name}"])


def hand_lolcats(mixer, theirs, n):
    at = f"model.layers.{n}.self_attn."
    mixer.phi_q.weight.copy_(theirs[at + "feature_map_q.mlp.layer"])
    mixer.phi_k.weight.copy_(theirs[at + "feature_map_k.mlp.layer"])
    for head in range(HEADS):
        mixer.window_logit[head] = theirs[at + "window_factors"][0, head, 0, 0]
    for name in "qkvo":
        at = f"base_model.model.model.layers.{n}.self_attn.{name}_proj.lora_"
        update = theirs[at + "B.default.weight"] @ theirs[at + "A.default.weight"]
        getattr(mixer, f"{name}_proj").weight.add_(16 / R * update)


def hand_same_names(mixer, theirs, n):
    for name, parameter in mixer.named_parameters():
        parameter.copy_(theirs[f"model.layers.{n}.self_attn.{name}"])


def hand_llamba(mixer, theirs, n):
    at = f"backbone.layers.{n}.mixer."
    rows = theirs[at + "in_proj.weight"]
    mixer.v_proj.weight.copy_(rows[:X])
    mixer.k_proj.weight.copy_(rows[X : X + QK])
    mixer.q_proj.weight.copy_(rows[X + QK : CONV])
    mixer.z_proj.weight.copy_(rows[CONV : CONV + X])
    mixer.a_proj.weight.copy_(rows[CONV + X :])
    mixer.o_proj.weight.copy_(theirs[at + "out_proj.weight"])
    for name, parameter in (("z_bias", mixer.z_bias), ("D", mixer.D)):
        parameter.copy_(theirs[at + name])
    mixer.conv1d.weight.copy_(theirs[at + "conv1d.weight"])
    mixer.conv1d.bias.copy_(theirs[at + "conv1d.bias"])


HANDS = {
    "lolcats": hand_lolcats,
    "liger": hand_same_names,
    "qrwkv6": hand_same_names,
    "qrwkv7": hand_same_names,
    "llamba": hand_llamba,
}
