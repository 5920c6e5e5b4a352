"""Train the demo transcriber from scratch on espeak-ng's speech: ``python demo/train_speech.py``.

The language-model loss alone never leaves a plateau at this size, so throw-away heads also ask the encoder, position by
position, which word is heard, and two cross-attention heads in each of two layers are told where to look; the weight of
both fades. Three phases: short windows packed with speech; whole windows; and whole windows of which half are cut out
of running speech, without which the model would repeat itself on sound that does not end before its window does. What
is saved is a running average of the weights.
"""

from __future__ import annotations

import argparse
import copy
import multiprocessing
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import get_ema_multi_avg_fn
from transformers import WhisperForConditionalGeneration, WhisperProcessor

from phrases import WORDS
from speech_labels import NOTHING, Batch, Labeller
from speech_model import (
    CURRENT_LAYER,
    ENCODER_POSITIONS,
    GUIDED_HEADS,
    PREVIOUS_LAYER,
    WIDTH,
    build_model,
    build_processor,
)
from speech_windows import WINDOW_FRAMES, Mixture, Spoken, WindowMixer, Word, noises, spoken_utterances

UTTERANCE_BLOCKS, BLOCK = 28, 500
NOISES = 200
WARM_UP_STEPS = 150
AVERAGE_DECAY = 0.999


@dataclass(frozen=True)
class Phase:
    """Some steps of one kind; learning rate and the weight of what is thrown away go evenly from first to last."""

    steps: int
    batch: int
    mixture: Mixture
    timestamps: float
    """Share of windows whose target has timestamps."""
    rates: tuple[float, float]
    guidance: tuple[float, float]


def phases(steps: tuple[int, int, int, int], running: float) -> list[Phase]:
    """All of the training."""
    packed, whole, mixed, polished = steps
    # Voices that are unlike those of the training are what the last phases prepare for.
    varied = Mixture(WINDOW_FRAMES, single=0.4, running=running, stretch=0.25, echo=0.3)
    return [
        Phase(packed, 32, Mixture(400), 0.3, (2e-3, 1.4e-3), (1.0, 0.4)),
        Phase(whole, 16, Mixture(WINDOW_FRAMES, single=0.4), 0.5, (1.4e-3, 2e-4), (0.4, 0.15)),
        Phase(mixed, 16, varied, 0.5, (7e-4, 0.0), (0.4, 0.15)),
        # With timestamps is how it is used, and the harder thing to write.
        Phase(polished, 16, varied, 0.7, (7e-4, 0.0), (0.15, 0.1)),
    ]


class WindowBatches(torch.utils.data.IterableDataset[Batch]):
    """Endless batches of freshly mixed windows."""

    def __init__(self, utterances: list[Spoken], labeller: Labeller, phase: Phase, seed: int) -> None:
        self.utterances = utterances
        self.labeller = labeller
        self.phase = phase
        self.seed = seed

    def __iter__(self) -> Iterator[Batch]:
        rng, phase = random.Random(self.seed), self.phase
        mixer = WindowMixer(self.utterances, noises(0, NOISES), rng)
        while True:
            windows = [mixer.draw(phase.mixture) for _ in range(phase.batch)]
            timed = [rng.random() < phase.timestamps for _ in windows]
            # Short windows are shown at every place of a whole one.
            offset = rng.randint(0, ENCODER_POSITIONS - phase.mixture.frames // 2)
            yield self.labeller.batch(windows, timed, offset)


class Examiner(nn.Module):
    """The throw-away heads: at each position of the encoder, what is and was heard."""

    def __init__(self) -> None:
        super().__init__()
        words = len(WORDS) + 1
        self.sizes = (words, words, words, 32, 2)
        self.weights = (1.0, 0.5, 0.3, 0.2, 0.5)
        self.ask = nn.Linear(WIDTH, sum(self.sizes))

    def forward(self, encoded: Tensor, labels: Tensor) -> Tensor:
        """One loss from the encoder's output, (B, T, WIDTH), and its labels, (5, B, T)."""
        answers = self.ask(encoded).float().split(self.sizes, dim=-1)
        losses = [
            weight * F.cross_entropy(answer.flatten(0, 1), label.flatten())
            for weight, answer, label in zip(self.weights, answers, labels, strict=True)
        ]
        return torch.stack(losses).sum()


class Student(nn.Module):
    """The model with its examiner."""

    def __init__(self, processor: WhisperProcessor) -> None:
        super().__init__()
        self.model = build_model(processor)
        self.examiner = Examiner()


class Looks:
    """The attention of the guided layers, (B, HEADS, L, T), as it was in the last call."""

    def __init__(self, student: Student) -> None:
        self.seen: dict[int, Tensor] = {}
        explicit = copy.deepcopy(student.model.config)
        explicit._attn_implementation = "eager"  # the only one that tells its weights
        for index in (PREVIOUS_LAYER, CURRENT_LAYER):
            attention = student.model.model.decoder.layers[index].encoder_attn
            attention.config = explicit
            attention.register_forward_hook(lambda _, __, output, index=index: self.seen.update({index: output[1]}))

    def loss(self, guides: Tensor) -> Tensor:
        """How far the guided heads are from looking where `guides`, (2, B, L, T) bool, says."""
        losses = []
        for index, guide in zip((PREVIOUS_LAYER, CURRENT_LAYER), guides, strict=True):
            inside = (self.seen[index][:, :GUIDED_HEADS].float() * guide[:, None]).sum(-1)
            told = guide.any(-1)[:, None].expand_as(inside)
            losses.append(-inside[told].clamp_min(1e-5).log().mean())
        return torch.stack(losses).sum()


def encode(model: WhisperForConditionalGeneration, features: Tensor, offset: int) -> Tensor:
    """What the model's encoder does, for windows that are shorter and shown from position `offset` on."""
    encoder = model.model.encoder
    states = F.gelu(encoder.conv2(F.gelu(encoder.conv1(features)))).permute(0, 2, 1)
    states = states + encoder.embed_positions.weight[offset : offset + states.shape[1]]
    for layer in encoder.layers:
        states = layer(states, None)
    encoded: Tensor = encoder.layer_norm(states)
    return encoded


def losses(student: Student, looks: Looks, batch: Batch) -> tuple[Tensor, Tensor, float]:
    """Loss of the text, loss of all that is thrown away, and the share of tokens that are right."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        encoded = encode(student.model, batch.features, batch.offset)
        logits = student.model(
            encoder_outputs=(encoded,), decoder_input_ids=batch.inputs, use_cache=False
        ).logits.float()
        guidance = student.examiner(encoded, batch.heard) + 0.4 * looks.loss(batch.guides)
    text = F.cross_entropy(logits.flatten(0, 1), batch.labels.flatten(), ignore_index=NOTHING)
    wanted = batch.labels != NOTHING
    right = (logits.argmax(-1) == batch.labels)[wanted].float().mean().item()
    return text, guidance, right


def train_phase(
    student: Student, phase: Phase, batches: WindowBatches, save: Path, processor: WhisperProcessor
) -> Student:
    """The student's running average after the phase; saved to `save` on the way."""
    average = copy.deepcopy(student).eval()
    looks = Looks(student)
    student.train()
    parameters = [p for p in student.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": 0.02},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=phase.rates[0], betas=(0.9, 0.98), fused=True)
    start, shown = time.monotonic(), {"text": 0.0, "guidance": 0.0, "right": 0.0}
    for step, batch in enumerate(
        torch.utils.data.DataLoader(batches, batch_size=None, num_workers=1, prefetch_factor=4)
    ):
        rate, weight = (a + (b - a) * step / phase.steps for a, b in (phase.rates, phase.guidance))
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1, (step + 1) / WARM_UP_STEPS)
        text, guidance, right = losses(student, looks, batch)
        optimizer.zero_grad()
        (text + weight * guidance).backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        decay = min(AVERAGE_DECAY, step / (step + 10))
        get_ema_multi_avg_fn(decay)(list(average.parameters()), list(student.parameters()), step)
        for name, value in (("text", text.item()), ("guidance", guidance.item()), ("right", right)):
            shown[name] += (value - shown[name]) * max(0.02, 1 / (step + 1))
        if step % 50 == 49:
            figures = " ".join(f"{name} {value:.4f}" for name, value in shown.items())
            print(f"step {step + 1}/{phase.steps} {time.monotonic() - start:.0f} s {figures}", flush=True)
        if step % 500 == 499 or step + 1 == phase.steps:
            average.model.save_pretrained(save)
            processor.save_pretrained(save)
        if step + 1 == phase.steps:
            break
    return average


def load_utterances(cache: Path, processes: int) -> list[Spoken]:
    """All utterances of the training, made if `cache` is not there."""
    if not cache.exists():
        started = time.monotonic()
        with multiprocessing.get_context("spawn").Pool(processes) as pool:
            blocks = pool.starmap(spoken_utterances, [(seed, BLOCK) for seed in range(UTTERANCE_BLOCKS)], chunksize=1)
        cache.parent.mkdir(parents=True, exist_ok=True)
        rows = [(torch.from_numpy(s.mel), [tuple(w) for w in s.words]) for block in blocks for s in block]
        torch.save(rows, cache)
        print(f"{len(rows)} utterances in {time.monotonic() - started:.0f} s", flush=True)
    return [Spoken(mel.numpy(), [Word(*w) for w in words]) for mel, words in torch.load(cache)]


def train(options: argparse.Namespace) -> None:
    """Every phase from `options.phase` on, each from what the one before left in `options.work`."""
    processor = build_processor()
    labeller = Labeller(processor)
    utterances = load_utterances(options.work / "utterances.pt", options.threads)
    for number, phase in enumerate(phases(options.steps, options.running), start=1):
        if number < options.phase:
            continue
        torch.manual_seed(options.seed + number)
        student = Student(processor)
        if number > 1:
            student.load_state_dict(torch.load(options.work / f"phase-{number - 1}.pt"))
        print(f"phase {number}: {phase}", flush=True)
        batches = WindowBatches(utterances, labeller, phase, options.seed + number)
        student = train_phase(student, phase, batches, options.out, processor)
        torch.save(student.state_dict(), options.work / f"phase-{number}.pt")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "models" / "speech")
    parser.add_argument("--work", type=Path, required=True, help="folder for the utterances and what each phase leaves")
    parser.add_argument("--steps", type=int, nargs=4, default=(2800, 1300, 800, 1500), help="of each phase")
    parser.add_argument("--phase", type=int, choices=(1, 2, 3, 4), default=1, help="where to begin")
    parser.add_argument(
        "--running", type=float, default=0.5, help="share of the last windows cut out of running speech"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(options.threads)
    train(options)


if __name__ == "__main__":
    main()
