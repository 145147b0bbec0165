"""Which drafters does a worker have? Predictions first, then those that its settings name, in their order."""

from __future__ import annotations

from splitserve.engine_core.settings.speculation import Speculation
from splitserve.worker.batch.input_batch import InputBatch
from splitserve.worker.grammar.row_grammars import RowGrammars
from splitserve.worker.ops.drafts.ngrams import NgramLengths
from splitserve.worker.sampling.sampler import Sampler
from splitserve.worker.speculation.draft_sheet import DraftSheet
from splitserve.worker.speculation.drafter import Drafter, ModelDrafter
from splitserve.worker.speculation.grammar_drafter import GrammarDrafter
from splitserve.worker.speculation.ngram_drafter import NgramDrafter
from splitserve.worker.speculation.prediction_drafter import PredictionDrafter
from splitserve.worker.speculation.speculator import Speculator
from splitserve.worker.speculation.stage_drafting import StageDrafting
from splitserve.worker.speculation.suffix_drafter import SuffixDrafter


def make_speculator(
    batch: InputBatch,
    grammars: RowGrammars,
    speculation: Speculation | None,
    max_logits_rows: int,
    draft_model: ModelDrafter | None = None,
    *,
    is_ahead: bool = False,
) -> Speculator:
    """Return what drafts for the rows of a batch.

    Args:
        batch: owns the rows.
        grammars: of the rows.
        speculation: how; None on ranks that are told what another drafts.
        max_logits_rows: how many rows of logits may exist at once.
        draft_model: of the batch, if the settings name one, or a head.
        is_ahead: see DraftSheet.
    """
    sheet = DraftSheet(batch, max_logits_rows, is_ahead=is_ahead)
    if speculation is None:
        return Speculator(sheet, [], 0)
    # What a client expects costs nothing where no client says it, so it needs no setting of its own.
    methods = [method for method in speculation.methods if method != "prediction"]
    drafters = [
        draft_model
        if draft_model is not None and method == draft_model.method
        else _make(method, sheet, grammars, speculation)
        for method in ("prediction", *methods)
    ]
    return Speculator(sheet, drafters, speculation.num_speculative_tokens)


def make_stage_drafting(
    sampler: Sampler,
    speculation: Speculation | None,
    max_logits_rows: int,
    draft_model: ModelDrafter | None = None,
) -> StageDrafting:
    """Return what drafts and computes drafts in a stage of a pipeline, for the sampler's batch.

    Args:
        sampler: of the batch.
        speculation: how; None on ranks that are told what another drafts.
        max_logits_rows: how many rows of logits may exist at once.
        draft_model: of the batch, if the settings name one, or a head.
    """
    batch, grammars = sampler.batch, sampler.grammars
    speculator = make_speculator(batch, grammars, speculation, max_logits_rows, draft_model, is_ahead=True)
    return StageDrafting(batch, speculator, grammars, draft_model)


def _make(method: str, sheet: DraftSheet, grammars: RowGrammars, speculation: Speculation) -> Drafter:
    if method == "prediction":
        return PredictionDrafter(sheet)
    if method == "grammar":
        return GrammarDrafter(grammars)
    if method == "suffix":
        return SuffixDrafter(sheet, speculation.suffixes)
    assert method == "ngram", "settings name no other"
    return NgramDrafter(sheet, NgramLengths(speculation.prompt_lookup_min, speculation.prompt_lookup_max))
