"""lm-eval's own command line with SWA(w, s) among its models: every task it has, under any window.

    python -m swalib.lm_eval run --tasks piqa --model swa \\
        --model_args pretrained=smollm2-135m,window=64,sinks=4

The model takes what lm-eval's `hf` takes, and `window`, `sinks`, `positions`, `impl`; without a window it is
full attention, through the same code. `pretrained` may also be a name of `swalib.models`.
"""

from __future__ import annotations

from itertools import groupby

from lm_eval.api.registry import register_model
from lm_eval.models.huggingface import HFLM
from tqdm import tqdm

from swalib import models
from swalib.canary import assert_applied
from swalib.evals.likelihood import Item, Scorer, common
from swalib.evals.prompts import DELIMITER
from swalib.hf import under
from swalib.spec import SWA, Full


@register_model("swa")
class SWALM(HFLM):
    """lm-eval's `hf` model under SWA(window, sinks), shared beginnings read once.

    Args:
        pretrained: a name of `swalib.models`, a local folder, a hub id, or a model in memory.
        window, sinks, positions: as in `SWA`; no window is full attention.
        impl: how attention is computed, see `swalib.attention`.
        options: HFLM's own; `dtype` is float32 unless given, and `batch_size` 8.

    Raises:
        ValueError: sinks or positions without a window, or what `SWA` and `under` refuse; an item longer than
            the model's positions, when it is scored.
    """

    def __init__(
        self,
        pretrained,
        window: int | None = None,
        sinks: int = 0,
        positions: str = "text",
        impl: str = "sdpa",
        **options,
    ) -> None:
        if window is None and (sinks or positions != "text"):
            raise ValueError("sinks and positions belong to a window: give window=, or leave them out")
        spec = Full() if window is None else SWA(window, sinks, positions)
        options = {"dtype": "float32", "batch_size": 8} | options
        if isinstance(pretrained, str) and (pretrained in models.MODELS or pretrained.startswith("tiny-")):
            options, pretrained = _embedded(pretrained, options)
        super().__init__(pretrained=pretrained, **options)
        self._model = under(self.model, spec, impl)
        assert_applied(self._model, spec)
        self._scorer = Scorer(self._model, int(self.batch_size))

    def _loglikelihood_tokens(self, requests, disable_tqdm: bool = False, override_bs=None):
        """lm-eval's hook: (log-likelihood, whether greedy) of each request."""
        groups = [list(group) for _, group in groupby(requests, key=lambda request: request[1])]
        asked = [self._item(group) for group in groups]
        with tqdm(total=len(asked), desc="items", disable=disable_tqdm) as bar:
            found = [score for scores in self._scorer.score(asked, bar) for score in scores]
        for request, score in zip(requests, found, strict=True):
            if request[0] is not None:
                self.cache_hook.add_partial("loglikelihood", request[0], tuple(score))
        return [tuple(score) for score in found]

    def _item(self, requests) -> Item:
        """One context with its continuations; what stands before its last example is the header."""
        texts, context, _ = requests[0]
        rows = tuple((*ids, *continuation) for _, ids, continuation in requests)
        shown = "" if texts is None else texts[0][: max(texts[0].rfind(DELIMITER), 0)]
        header = common(tuple(self.tok_encode(shown)), tuple(context)) if shown else 0
        return Item(rows, (len(context),) * len(rows), header)


def _embedded(name: str, options: dict) -> tuple[dict, object]:
    import torch

    dtype = options["dtype"]
    loaded = models.load(name, getattr(torch, dtype) if isinstance(dtype, str) else dtype)
    if device := options.get("device"):
        loaded.model.to(device)
    return options | {"tokenizer": loaded.tokenizer, "add_bos_token": loaded.bos is not None}, loaded.model


def main() -> None:
    """lm-eval's own command line, which knows the model "swa" once this module is imported."""
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()


if __name__ == "__main__":
    main()
