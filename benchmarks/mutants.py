"""Breaks every formula of the averaging in one place, and shows that the tests see it.

    python benchmarks/mutants.py            all mutants, as a Markdown table; exit status 1 where one survives
    python benchmarks/mutants.py heloco     those whose description has the word in it

Each mutant is one replacement in a copy of the package; the tests of tests/core run against the copy, those of the mutated
module first and all of them where these see nothing. Nothing of the working tree is changed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

ROOT = Path(__file__).parent.parent
WORKERS = 2
TESTS = {
    "strategies/algebra.py": ["test_algebra", "test_synchronous", "test_robust"],
    "strategies/synchronous.py": ["test_synchronous"],
    "strategies/asynchronous.py": ["test_asynchronous", "test_center"],
    "strategies/elastic.py": ["test_elastic"],
    "strategies/robust.py": ["test_robust"],
    "strategies/codecs.py": ["test_codecs"],
    "strategies/registry.py": ["test_registry"],
    "messages.py": ["test_messages", "test_codecs"],
    "schedules.py": ["test_schedules"],
    "averaging.py": ["test_averaging", "test_codecs", "test_loop"],
    "summing.py": ["test_summing", "test_averaging", "test_codecs", "test_loop"],
    "merging.py": ["test_merging", "test_center", "test_averaging", "test_loop"],
    "center.py": ["test_center"],
    "async_progress.py": ["test_async_progress", "test_center"],
    "loop.py": ["test_loop", "test_progress"],
    "async_loop.py": ["test_async_loop", "test_progress"],
    "progress.py": ["test_progress", "test_loop"],
    "quorum.py": ["test_quorum"],
    "pieces.py": ["test_pieces"],
    "drift.py": ["test_drift"],
    "variates.py": ["test_variates"],
}


@dataclass(frozen=True)
class Mutant:
    """One place that is changed. `old` occurs in the module; only its first occurrence after `after` is replaced."""

    module: str
    what: str
    old: str
    new: str
    after: str = ""


def _of(module: str, *rows: tuple[str, str, str] | tuple[str, str, str, str]) -> list[Mutant]:
    return [Mutant(module, *row) for row in rows]


MUTANTS = [
    *_of(
        "strategies/algebra.py",
        ("mean: weights forgotten", "add_scaled(self._sum, delta, weight)", "add_scaled(self._sum, delta, 1.0)"),
        ("mean: the first not weighed", "self._sum *= self._sum.dtype.type(self._weight)", "pass"),
        ("mean: one alone divided", "np.int64)} if self._alone else {}", "np.int64)} if not self._alone else {}"),
        ("mean: not divided", "total /= total.dtype.type(self._weight)", "pass"),
        ("mean: only the last worker", "add_scaled(self._sum, delta, weight)", "add_scaled(None, delta, weight)"),
        ("mean: samples do not count", "if self.equal else float(update.samples)", "if self.equal else 1.0"),
        ("part: samples do not count", "return float(update.samples)", "return 1.0", "class Reduce:"),
        ("equal mean: samples count", "if self.equal else", "if not self.equal else"),
        ("sum: only the last", "add_scaled(self._sum, delta, weight)", "add_scaled(None, delta, weight)", "class Sum:"),
        ("staleness: off by one", "self.version - update.version)", "self.version - update.version + 1)"),
        ("staleness: below nought", "max(0, self.version - update.version)", "self.version - update.version"),
        ("delta: uphill", "return end - served, memory", "return served - end, memory"),
        ("step: away", "return weights + direction, outer", "return weights - direction, outer"),
        ("float64: sum taken up as float32", "copy: Vector = np.array(vector)", "copy: Vector = np.array(vector, np.float32)"),
        ("held mean: weight forgotten", 'if "weight" in held else 0.0', "if False else 0.0"),
        ("held sum: forgotten", 'if "sum" in held else None', "if False else None", "class Sum:"),
    ),
    *_of(
        "pieces.py",
        ("sums: scale forgotten", "np.multiply(term[piece], total.dtype.type(scale), out=scaled)", "scaled[:] = term[piece]"),
        ("sums: first term unscaled", "return term * term.dtype.type(scale)", "return term * term.dtype.type(1)"),
        ("sums: the first piece alone", "range(0, vector.size, PIECE)", "range(0, min(vector.size, PIECE), PIECE)"),
        ("step by pieces: the first piece alone", "range(0, weights.size, PIECE)", "range(0, PIECE, PIECE)"),
        ("step by pieces: whole memory each time", "vector[place] if name in cut else vector for", "vector[:place.stop-place.start] if name in cut else vector[:] for"),
        ("same bits: as numbers", ".view(whole), other[begin : begin + PIECE].view(whole)", ", other[begin : begin + PIECE]"),
        ("float64: sums by pieces of float32", "np.empty(min(vector.size, PIECE), vector.dtype)", "np.empty(min(vector.size, PIECE), np.float32)"),
        ("towards: the whole way", "np.multiply(step, ours.dtype.type(share), out=step)", "pass"),
    ),
    *_of(
        "strategies/synchronous.py",
        ("one worker: its step sent", "        return end, memory", "        return end - served, memory"),
        ("one worker: weights added", "        return direction, outer", "        return weights + direction, outer"),
        ("nesterov: momentum off", 'mu * outer["momentum"] + direction', "direction", "class Nesterov(S"),
        ("nesterov: no look ahead", "direction + mu * buffer", "1.0 * buffer"),
        ("nesterov: learning rate off", "self.learning_rate * ahead", "1.0 * ahead"),
        ("nesterov: momentum not kept", '{"momentum": buffer}', '{"momentum": outer["momentum"]}', "class Nesterov(S"),
        ("diloco: nesterov's momentum", "momentum: float = 0.9", "momentum: float = 0.7", "class DiLoCo"),
        ("fedavgm: momentum off", 'self.momentum * outer["momentum"] + direction', "direction", "class FedAvgM"),
        ("fedavgm: learning rate off", "self.learning_rate * buffer", "1.0 * buffer", "class FedAvgM"),
        ("slowmo: not in learning rates", "direction / np.float32(rate)", "direction", "class SlowMo"),
        ("slowmo: rate not given back", "np.float32(self.learning_rate * rate)", "np.float32(self.learning_rate)"),
        ("bmuf: momentum 1/K", "return 1.0 - 1.0 / context.num_workers", "return 1.0 / context.num_workers"),
        ("bmuf: zeta off", "self.learning_rate * direction", "direction", "class BMUF"),
        ("bmuf nesterov: served behind", "weights + self.eta(context)", "weights - self.eta(context)"),
        ("fedadam: v begins at 0", "self.tau**2", "0.0 * self.tau"),
        ("fedadam: m not damped", "(1.0 - self.beta1) * direction", "direction"),
        ("fedadam: v not damped", "(1.0 - self.beta2) * square\n", "square\n", "class FedAdam"),
        ("fedadam: no root", "velocity**0.5 + self.tau", "velocity + self.tau"),
        ("fedadam: tau off", "velocity**0.5 + self.tau", "velocity**0.5 + 1e-12"),
        ("fedyogi: sign turned", "np.sign(velocity - square)", "np.sign(square - velocity)"),
        ("fedyogi: sign off", " * np.sign(velocity - square)", ""),
        ("fedadagrad: v forgets", "return velocity + square", "return square"),
        ("one_shot: any frequency", "frozenset({Frequency.FIT})", "None"),
    ),
    *_of(
        "strategies/robust.py",
        ("median: a mean", "np.median(np.stack(deltas), axis=0)", "np.mean(np.stack(deltas), axis=0)"),
        ("trimmed mean: top kept", "[out : len(deltas) - out]", "[out:]"),
        ("trimmed mean: one more goes", "int(self.share * len(deltas))", "int(self.share * len(deltas)) + 1"),
        ("rda: weights forgotten", "np.float32(weight / norm)", "np.float32(1 / norm)"),
        ("rda: directions not of length 1", "np.float32(weight / norm)", "np.float32(weight)"),
        ("rda: length of the mean", "np.float32(length / max(float(np.linalg.norm(towards)), _TINY))", "np.float32(1 / sum(weights))"),
        ("rda: all tensors together", "for place in context.tensors():", "for place in [slice(None)]:"),
        ("rda: weight n / steps", "update.samples**2 / max", "update.samples / max"),
        ("clipped: stretches, too", "if length > self._norm else delta", "if length > 0 else delta"),
        ("clipped: not at all", "if length > self._norm else delta", "if False else delta"),
        ("clipped: part's weight forgotten", "return (self.then or Mean()).weight(update, context)", "return 1.0"),
    ),
    *_of(
        "strategies/elastic.py",
        ("elastic: workers stay", '{"own": end - pull}', '{"own": end}'),
        ("elastic: workers pushed away", '{"own": end - pull}', '{"own": end + pull}'),
        ("elastic: alpha without K", "(self.beta / context.num_workers)", "self.beta"),
        ("elastic: own weights forgotten", 'memory.get("own", served)', "served"),
        ("elastic: mean of the pulls", "reduces: ClassVar[Reduce] = Total()", "reduces: ClassVar[Reduce] = Strategy.reduces"),
        ("elastic: samples count", "return 1.0", "return float(update.samples)"),
    ),
    *_of(
        "strategies/asynchronous.py",
        ("mla: momentum not damped", "(1.0 - mu) * direction", "direction", "class MomentumLookAhead"),
        ("mla: arrival weight 1", "float(min(workers**-0.5,", "float(min(1.0,"),
        ("mla: agreement ignored", "max(0.0, context.agreement.cosine or 0.0)", "0.0"),
        ("mla: short rounds weigh less too", "max(1, update.steps)", "1e9"),
        ("mla: served behind", "weights + np.float32(self.learning_rate * reach)", "weights - np.float32(self.learning_rate * reach)"),
        ("mla: other workers forgotten", "self.momentum + (1 + self.momentum) * others * told", "self.momentum"),
        ("mla: all workers exchange", "(context.behind - before) / workers", "0.0"),
        ("mla: one update says how many others there are", "(context.behind - before) / workers", "(context.behind - before)"),
        ("mla: stale updates reach too far", "/ workers, workers - 1)", "/ workers, 1e9)"),
        ("mla: long rounds told all in advance", "min(1.0, AHEAD / together)", "1.0"),
        ("mla: no look ahead in the step", "direction + mu * buffer", "direction", "class MomentumLookAhead"),
        ("heloco: nothing corrected", "self.corrected(direction, outer", "(lambda d, *_: d)(direction, outer"),
        ("heloco: conflict made stronger", "d = d - np.float32(less * cosine * length) * v", "d = d + np.float32(less * cosine * length) * v"),
        ("heloco: no cap", "min(self.shrink * -cosine * sure, self.most)", "self.shrink * -cosine * sure"),
        ("heloco: no confidence", "length / (length + self.kappa * against)", "1.0"),
        ("heloco: turned delta gets longer", "np.float32(length / max(float(np.linalg.norm(turned)), _TINY)) * turned", "np.float32(length) * turned"),
        ("heloco: arrival weight corrected, too", "direction[place] / np.float32(arrival)", "direction[place]"),
        ("heloco: threshold off", "elif cosine < self.keep:", "elif cosine < 1:"),
        ("downpour: samples count", "return 1.0", "return float(update.samples)", "class DownPour(S"),
        ("downpour adagrad: v forgets", 'outer["velocity"] + direction**2', "direction**2"),
        ("downpour adagrad: epsilon off", "velocity**0.5 + self.epsilon", "velocity**0.5 + 1e-30"),
        ("adag: sum of the steps", "(end - served) / np.float32(max(1, steps))", "(end - served)"),
        ("dynsgd: tau without 1", "1.0 / (context.staleness(update) + 1)", "1.0 / max(1, context.staleness(update))"),
        ("staleness_aware: tau + 1", "1.0 / max(1, context.staleness(update))", "1.0 / (1 + context.staleness(update))"),
        ("fedasync: adds", "np.float32(context.weight) * (direction - weights)", "np.float32(context.weight) * direction"),
        ("fedasync: never stale", "(1.0 + context.staleness(update)) ** -self.power)", "1.0)"),
        ("fedbuff: not divided by M", " / self.quorum(context.num_workers))", ")"),
        ("fedbuff: steps at once", "return num_workers if self.buffer is None else self.buffer", "return 1"),
        ("fedbuff: staler counts more", "** -self.power / self", "** self.power / self"),
        ("delayed nesterov: whole deltas", "(rate / delay) * direction", "rate * direction"),
        ("delayed nesterov: a push late", "pushes[0] < delay", "pushes[0] <= delay"),
        ("delayed nesterov: buffer kept", '"buffer": np.zeros_like(buffer)', '"buffer": buffer'),
        ("delayed nesterov: sum of the buffer", "buffer / np.float32(delay)", "buffer"),
        ("delayed nesterov: momentum twice", "(rate * self.momentum) * momentum", "rate * momentum"),
    ),
    *_of(
        "strategies/codecs.py",
        ("float64: steps of weights in float32", "self.opened(packed, base.size), base.dtype,", "self.opened(packed, base.size), np.float32,"),
        ("fp16: overflows", "np.clip(vector, -_HALF_MAX, _HALF_MAX)", "vector.clip(-1e9, 1e9)"),
        ("int8: 128 steps", "_quantized(vector, self.block, 127)", "_quantized(vector, self.block, 128)"),
        ("int8: cut off", "np.rint(blocks", "np.trunc(blocks"),
        ("int4: halves exchanged", "nibbles[0::2] | (nibbles[1::2] << np.uint8(4))", "nibbles[1::2] | (nibbles[0::2] << np.uint8(4))"),
        ("int4: offset off by one", "steps[:size] - np.float32(8)", "steps[:size] - np.float32(7)"),
        ("one_bit: greatest for mean", "blocks.sum(axis=1, dtype=np.float32) / full", "blocks.max(axis=1, initial=0)"),
        ("one_bit: last block too small", "full[-1] = vector.size - self.block * (len(blocks) - 1)", "pass"),
        ("one_bit: no feedback", "error_feedback: bool = field(default=True", "error_feedback: bool = field(default=False", "class OneBit"),
        ("top_k: the smallest", "np.partition(sizes, vector.size - count)[vector.size - count]", "np.partition(sizes, count - 1)[count - 1]"),
        ("top_k: sizes without signs", "_raw(vector[places]", "_raw(np.abs(vector[places])"),
        ("top_k: NaN stays behind", "sizes[np.isnan(sizes)] = np.inf", "sizes[np.isnan(sizes)] = 0"),
        ("guard: any number of bytes", "packed.size != self.nbytes(size)", "False"),
    ),
    *_of(
        "messages.py",
        ("float64: workers begin in float32", "context).astype(served.dtype, copy=False)", "context).astype('float32')"),
        ("float64: messages in float32", "sent.astype(served.dtype, copy=False)", "sent.astype('float32')"),
        ("feedback: error doubled", "sent - self._codec.unpack(packed, sent.size)", "2 * (sent - self._codec.unpack(packed, sent.size))"),
        ("feedback: error turned", "sent = sent + self.residual", "sent = sent - self.residual"),
        ("feedback: error forgotten", "sent = sent + self.residual", "pass"),
        ("memory: NaN kept", "if sound:\n            self.memory", "if True:\n            self.memory"),
        ("memory: never kept", "            self.memory = memory\n", "            pass\n"),
    ),
    *_of(
        "schedules.py",
        ("qsr: linear", "(self.alpha / moment.learning_rate) ** 2", "(self.alpha / moment.learning_rate)"),
        ("qsr: no least", "max(self.least, int(", "max(1, int("),
        ("post-local: turned", "self.count if moment.epoch >= self.after else 1", "1 if moment.epoch >= self.after else self.count"),
        ("post-local: at once", "moment.learning_rate < moment.first_learning_rate", "moment.learning_rate <= moment.first_learning_rate"),
        ("rounds: beyond the epoch", "end = min(epoch_steps, done", "end = max(0, done"),
        ("rounds: within accumulations", "count - count % accumulation", "count"),
    ),
    *_of(
        "averaging.py",
        ("float64: weights of a round in float32", "weights.astype(self.start.weights.dtype, copy=False)", "weights.astype('float32')"),
        ("context: weight forgotten", "self._weight += weight", "pass"),
        ("late: its rounds do not count", "(1 + staleness * self.monitor.apart)", "1.0"),
        ("late: integers and slots", "late=self.context.staleness(update) > 0", "late=False"),
    ),
    *_of(
        "averaging.py",
        ("mean step: after the outer step", "self._steps.of(direction, self.context.learning_rate)", "self._steps.of(2 * direction, self.context.learning_rate)"),
        ("mean step: rate forgotten", "self._steps.of(direction, self.context.learning_rate)", "self._steps.of(direction, 1.0)"),
        ("mean step: steps forgotten", "self._steps.add(weight, update.steps)", "self._steps.add(weight, 1)"),
        ("mean step: where nobody asks", "if self.control_variates:", "if True:"),
    ),
    *_of(
        "variates.py",
        ("correction: the other way", "mean_step - np.float32(self._rate) * self.own", "np.float32(self._rate) * self.own - mean_step"),
        ("correction: rate forgotten", "np.float32(self._rate) * self.own", "self.own"),
        ("correction: nothing left out", "self._correction[place] = 0", "pass"),
        ("correction: twice", "            self._correction = None\n        if not", "        if not"),
        ("own step: at a rate of nought", "        if not self._rate:\n            return end\n", ""),
        ("correction: counted as its own", "end - np.float32(steps) * self._correction", "end"),
        ("correction: once a round", "np.float32(steps) * self._correction", "self._correction"),
        ("own step: of the whole round", "np.float32(steps * self._rate)", "np.float32(self._rate)"),
        ("own step: rate forgotten", "np.float32(steps * self._rate)", "np.float32(steps)"),
        ("own step: from nought", "(end - start)", "end"),
        ("own step: NaN kept", "if finite(own):", "if True:"),
        ("own step: of another model", "self.own is not None and self.own.size == mean_step.size", "self.own is not None"),
        ("mean step: upside down", "self._weight / (self._steps *", "self._steps / (self._weight *"),
        ("mean step: weights forgotten", "weight * steps", "steps"),
    ),
    *_of(
        "summing.py",
        ("codec: not opened", "update = opened(update, self.codec, start.weights.size)", "pass"),
        ("infinity: always a mistake", "~np.isfinite(part) & np.isfinite(state.part(role))", "~np.isfinite(part)"),
        ("slices: as they come", "sorted(terms, key=lambda term: term.worker)", "terms"),
        ("slices: put together as they come", "sorted(partials, key=lambda partial: partial.place)", "list(partials)"),
        ("slices: slots equally", "float(term.samples)", "1.0"),
        ("slices: of updates with NaN, too", "not self.not_finite and self.update.samples > 0", "self.update.samples > 0"),
        ("slices: of strategies that need the whole", "type(strategy.reduction(context)) in (WeightedMean, Sum)", "True"),
        ("slices: weight of an empty one", "filled[0].items()", "held[0].items()"),
        ("drift: of the weights", "update.delta if strategy.deltas else update.delta - weights", "update.delta"),
    ),
    *_of(
        "merging.py",
        ("float64: statistics in float32", "pooled.astype(self._dtype, copy=False)", "pooled.astype('float32')"),
        ("float64: mixed statistics in float32", "pooled.astype(ours.dtype, copy=False)", "pooled.astype('float32')"),
        ("learning rate: never a step's", "update.learning_rate if update.learning_rate.size else None", "None"),
        ("slots: equally on unequal shards", "float(update.samples))", "1.0)"),
        ("slots: only the first half, m without v", "self._slots.add(update.slots, ", "self._slots.add(np.where(np.arange(update.slots.size) < update.slots.size / 2, update.slots, 0), "),
        ("statistics: variances averaged", "pooled[variance] + between * self._stretch(mean)", "pooled[variance]"),
        ("statistics: between moving means as between plain ones", "not self._together", "True"),
        ("statistics: nothing between asynchronous workers", "share * known", "0.0"),
        ("statistics: through the outer momentum", '"statistics": self._statistics.result(),', '"statistics": None if self._statistics.result() is None else start.statistics + np.float32(1.7) * (self._statistics.result() - start.statistics),'),
        ("statistics: last worker", "self._sum = term if self._sum is None else self._sum + term", "self._sum = term"),
        ("integers: the first worker's", "steps > self._most_steps", "self._most_steps < 0"),
        ("integers: the last worker's", "steps > self._most_steps", "True"),
        ("integers: the most steps in a round", "update.worker == self._largest and update.steps", "False"),
        ("loss scale: the highest", "other[:, 1] < one[:, 1]", "other[:, 1] > one[:, 1]"),
        ("loss scale: another's counter", "np.where(take[:, None], other, one).ravel()", "np.stack([one[:, 0], np.where(take, other[:, 1], one[:, 1])], 1).ravel()"),
        ("loss scale: the last of equal ones", "further = update.steps > self._scale_steps", "further = True"),
        ("frozen: always the start's", '"frozen": frozen,', '"frozen": None,'),
        ("frozen: those who changed nothing do not count", "frozen is not None and self._frozen_unchanged", "False"),
        ("moving averages: drawn back to where a worker began", "kept * (ours[moving].astype(np.float64) - began[moving])", "0.0"),
        ("moving averages: one step, however many", "layout.momenta[moving].astype(np.float64) ** steps", "layout.momenta[moving].astype(np.float64)"),
        ("moving averages: of another version", "version_begun == update.version", "True"),
        ("moving averages: variances below zero", "moved[variance] = np.maximum(", "np.maximum("),
        ("infinity: mixed with numbers", "np.where(np.isfinite(ours), pooled, theirs)", "pooled"),
        ("integers: whoever came last", ">= max(self.steps.values())", ">= 0"),
        ("loss scale: cannot grow", "update.version >= self.lowered", "False"),
        ("loss scale: forgets an overflow", "self.lowered = version", "pass"),
    ),
    *_of(
        "center.py",
        ("rate: of the first step", "(2 * number + 1) * steps // (2 * count)", "0"),
        ("rate: the sum", "math.fsum(rates) / count", "math.fsum(rates)"),
        ("float64: shared weights in float32", "weights=weights.astype(self._state.weights.dtype, copy=False)", "weights=weights.astype('float32')"),
        ("quorum: one more", "self._came < self._quorum", "self._came <= self._quorum"),
        ("version: every push", "        self._came += 1\n", "        self._came += 1\n        self.version += 1\n"),
        ("restore: half-full buffer lost", 'self._begin(_under("held.", arrays))', "self._begin()"),
        ("restore: momentum lost", 'self._outer = _under("outer.", arrays)', "self._outer = self._outer"),
        ("progress: not counted", "        self._samples += update.samples\n", ""),
        ("callbacks: weights overwritten", "self._state.weights + (after.weights - before.weights)", "after.weights - before.weights"),
    ),
    *_of(
        "async_progress.py",
        ("drift: every update is a look", "self._applied % sum(rounds > 0 for rounds in self._rounds)", "False"),
        ("drift: who has no rows counts", "sum(rounds > 0 for rounds in self._rounds)", "len(self._rounds)"),
        ("drift: one look is enough", ">= LEAST_PAIRS", ">= 1"),
        ("drift: one worker's round length", "for round_length in self._round_lengths:", "for round_length in self._round_lengths[:1]:"),
        ("drift: what is dropped counts", "self._applied += moved", "self._applied += 1"),
    ),
    *_of(
        "loop.py",
        ("packed steps: the weights themselves", "codec.pack(weights - base)", "codec.pack(weights)"),
        ("packed steps: nothing is lost", "codec.applied(packed, base)", "weights"),
        ("packed steps: from the driver's weights", "progress.published = None if step is None else ahead", "progress.published = None if step is None else state.weights"),
        ("packed steps: of another order", "self._published_by = progress.orders", "self._published_by = progress.version + 7"),
        ("schedule: rate of the beginning", "lambda done: rate(state, done - begin)", "lambda done: first_rate"),
        ("progress: not counted", "progress.samples += finished.samples", "pass"),
        ("resumed: schedule from the epoch's beginning", "0 if progress.span is None else progress.span.end", "0"),
        ("resumed: drift forgotten", "DriftMonitor(progress.directions, progress.rounds[-1].drift if progress.rounds else None)", "DriftMonitor()"),
        ("resumed: length of rounds forgotten", "plan.finest_rounds, progress.level", "plan.finest_rounds"),
        ("resumed: strategy's memory forgotten", "if progress.outer is None:", "if True:"),
        ("resumed: callbacks change the state twice", "if progress.span is None:\n            fit.callbacks_set", "if True:\n            fit.callbacks_set"),
    ),
    *_of("async_loop.py", ("resumed: shared state forgotten", "if progress.center:", "if False:")),
    *_of(
        "progress.py",
        ("float64: a checkpoint of float32 stays so", "state[name].astype(part.dtype, copy=False)", "state[name]"),
        ("packed steps: from a callback's weights too", "            self.published = None\n", "            pass\n"),
        ("packed steps: begin whole after a checkpoint", '"published": self.published', '"unpublished": self.published'),
        ("read: memory forgotten", 'if arrays["outer_begun"] else None', "if False else None"),
        ("read: span forgotten", "span=Span(*span) if span else None", "span=None"),
        ("epoch: metrics of the last one", "self.epoch, self.span, self.metrics = epoch + 1, None, np.zeros(0)", "self.epoch, self.span = epoch + 1, None"),
    ),
    *_of(
        "drift.py",
        ("agreement: last directions pile up", "(0 if last is None else last)", "0"),
        ("agreement: forgotten at a round's end", "len(self._before.keys() | self._now.keys())", "len(self._now)"),
        ("agreement: workers like themselves", "(_dot(total, total) - count)", "_dot(total, total)"),
    ),
    *_of(
        "quorum.py",
        ("share: rounded down", "math.ceil(asked * num_workers - 1e-9)", "int(asked * num_workers)"),
        ("grace: seconds", "self.grace * (reached - began)", "self.grace"),
    ),
]  # fmt: skip


def mutated(mutant: Mutant, text: str) -> str:
    """The module's text with the one change."""
    begin = text.index(mutant.after) if mutant.after else 0
    place = text.index(mutant.old, begin)
    return text[:place] + mutant.new + text[place + len(mutant.old) :]


def killer(mutant: Mutant, copy: Path) -> str | None:
    """The first test that fails, or None."""
    target = copy / "elephas_like" / "core" / mutant.module
    original = target.read_text()
    target.write_text(mutated(mutant, original))
    try:
        files = [f"tests/core/{name}.py" for name in TESTS[mutant.module]]
        for chosen in (files, ["tests/core"]):
            command = [
                sys.executable,
                "-m",
                "pytest",
                "-x",
                "-q",
                "--no-header",
                "--durations=0",
                "-p",
                "no:cacheprovider",
            ]
            run = subprocess.run([*command, *chosen], cwd=copy, capture_output=True, text=True, env=_environment())
            if run.returncode == 1:
                failed = [line for line in run.stdout.splitlines() if line.startswith("FAILED")]
                return failed[0].split()[1].removeprefix("tests/core/")
            if run.returncode:
                raise RuntimeError(f"{mutant.what!r} is no mutant: pytest cannot run.\n{run.stdout[-3000:]}")
        return None
    finally:
        target.write_text(original)


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": "", "PYTHONDONTWRITEBYTECODE": "1"}


def main(words: list[str]) -> int:
    """Prints the table; 1 where a mutant survives."""
    chosen = [mutant for mutant in MUTANTS if not words or any(word in mutant.what for word in words)]
    for mutant in chosen:
        mutated(mutant, (ROOT / "elephas_like" / "core" / mutant.module).read_text())  # all apply, before any runs
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copies: Queue[Path] = Queue()
        for index in range(WORKERS):
            copy = Path(folder) / str(index)
            shutil.copytree(ROOT / "elephas_like", copy / "elephas_like", ignore=shutil.ignore_patterns("__pycache__"))
            shutil.copytree(
                ROOT / "tests" / "core", copy / "tests" / "core", ignore=shutil.ignore_patterns("__pycache__")
            )
            for name in ("conftest.py", "lanes.py", "stable_ids.py"):
                shutil.copy(ROOT / "tests" / name, copy / "tests")
            shutil.copy(ROOT / "pyproject.toml", copy)
            copies.put(copy)

        def tried(mutant: Mutant) -> str | None:
            copy = copies.get()
            try:
                return killer(mutant, copy)
            finally:
                copies.put(copy)

        with ThreadPoolExecutor(WORKERS) as pool:
            killers = list(pool.map(tried, chosen))
    print("| mutant | module | seen by |\n|---|---|---|")
    for mutant, found in zip(chosen, killers, strict=True):
        print(f"| {mutant.what} | {mutant.module} | {'**survives**' if found is None else f'`{found}`'} |")
    seen = sum(found is not None for found in killers)
    print(f"\n{seen} of {len(chosen)} mutants seen, in {time.perf_counter() - started:.0f} s.")
    return int(seen < len(chosen))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
