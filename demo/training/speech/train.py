"""Trains the demo speech model from scratch on espeak-ng's speech.

    PYTHONPATH=demo .venv/bin/python -m training.speech.train --work FOLDER

The language-model loss alone never leaves a plateau at this model size. Auxiliary heads therefore learn to predict
which word is audible at each encoder position, and two cross-attention heads in each of two decoder layers learn to
attend to the audio of their token. The weight of both losses decreases during training, and the auxiliary heads are
not saved.

There are four phases: short windows packed with speech; whole windows; whole windows of which half are cut out of
running speech; and more of those, most of them with timestamps. Without running speech, the model would repeat itself
on audio that does not end before its window does. The saved model is a running average of the weights.
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

from synthetic.phrases import WORDS
from training.speech.labels import IGNORED_LABEL, Batch, Labeller
from training.speech.model import (
    CURRENT_LAYER,
    ENCODER_POSITIONS,
    GUIDED_HEADS,
    PREVIOUS_LAYER,
    WIDTH,
    build_model,
    build_processor,
)
from training.speech.windows import (
    WINDOW_FRAMES,
    Mixture,
    StoredUtterance,
    WindowMixer,
    Word,
    make_noises,
    make_utterances,
)

BLOCKS, BLOCK_UTTERANCES = 28, 500
NOISES = 200
WARM_UP_STEPS = 150
"""Steps at the beginning of each phase in which the learning rate rises from 0."""
AVERAGE_DECAY = 0.999
"""Decay of the running average of the weights, per step."""


@dataclass(frozen=True)
class Phase:
    """A phase of the training."""

    steps: int
    batch: int
    """Windows per step."""
    mixture: Mixture
    timestamps: float
    """Fraction of windows whose tokens include timestamps (0 to 1)."""
    rates: tuple[float, float]
    """Learning rates at the first and last step; they change linearly."""
    guidance: tuple[float, float]
    """Weights of the loss of auxiliary and guided heads at the first and last step; they change linearly."""


def phases(steps: tuple[int, int, int, int], running: float) -> list[Phase]:
    """Return the phases of the training.

    Args:
        steps: Number of steps of each phase.
        running: Fraction of windows cut out of running speech in the last two phases (0 to 1).
    """
    packed, whole, mixed, final = steps
    # The last phases vary voices more, so that the model also transcribes voices unlike those of the training.
    varied = Mixture(WINDOW_FRAMES, single=0.4, running=running, stretch=0.25, echo=0.3)
    return [
        Phase(packed, 32, Mixture(400), 0.3, (2e-3, 1.4e-3), (1.0, 0.4)),
        Phase(whole, 16, Mixture(WINDOW_FRAMES, single=0.4), 0.5, (1.4e-3, 2e-4), (0.4, 0.15)),
        Phase(mixed, 16, varied, 0.5, (7e-4, 0.0), (0.4, 0.15)),
        # Most windows of the last phase have timestamps: users want them, and they are harder to predict.
        Phase(final, 16, varied, 0.7, (7e-4, 0.0), (0.15, 0.1)),
    ]


class WindowBatches(torch.utils.data.IterableDataset[Batch]):
    """An endless sequence of batches of newly mixed windows."""

    def __init__(self, utterances: list[StoredUtterance], labeller: Labeller, phase: Phase, seed: int) -> None:
        self.utterances = utterances
        self.labeller = labeller
        self.phase = phase
        self.seed = seed

    def __iter__(self) -> Iterator[Batch]:
        rng, phase = random.Random(self.seed), self.phase
        mixer = WindowMixer(self.utterances, make_noises(0, NOISES), rng)
        while True:
            windows = [mixer.draw(phase.mixture) for _ in range(phase.batch)]
            timed = [rng.random() < phase.timestamps for _ in windows]
            # Short windows begin at random encoder positions, so that the model learns all positions.
            offset = rng.randint(0, ENCODER_POSITIONS - phase.mixture.frames // 2)
            yield self.labeller.batch(windows, timed, offset)


class AuxiliaryHeads(nn.Module):
    """Heads used only in training: they predict `Batch.positions` from the output of the encoder."""

    def __init__(self) -> None:
        super().__init__()
        words = len(WORDS) + 1
        self.sizes = (words, words, words, 32, 2)
        self.weights = (1.0, 0.5, 0.3, 0.2, 0.5)
        self.classifiers = nn.Linear(WIDTH, sum(self.sizes))

    def forward(self, encoded: Tensor, labels: Tensor) -> Tensor:
        """Return the weighted sum of the losses for the encoder's output, (B, T, WIDTH), and labels, (5, B, T)."""
        logits = self.classifiers(encoded).float().split(self.sizes, dim=-1)
        losses = [
            weight * F.cross_entropy(predicted.flatten(0, 1), label.flatten())
            for weight, predicted, label in zip(self.weights, logits, labels, strict=True)
        ]
        return torch.stack(losses).sum()


class ModelWithAuxiliaryHeads(nn.Module):
    """The speech model and its auxiliary heads."""

    def __init__(self, processor: WhisperProcessor) -> None:
        super().__init__()
        self.model = build_model(processor)
        self.auxiliary = AuxiliaryHeads()


class GuidedAttention:
    """Keeps the cross-attention weights of the guided layers from the last forward pass, to compute their loss."""

    def __init__(self, network: ModelWithAuxiliaryHeads) -> None:
        self.weights: dict[int, Tensor] = {}
        """(B, HEADS, L, T) by index of the layer."""
        eager = copy.deepcopy(network.model.config)
        eager._attn_implementation = "eager"  # the other implementations do not return attention weights
        for index in (PREVIOUS_LAYER, CURRENT_LAYER):
            attention = network.model.model.decoder.layers[index].encoder_attn
            attention.config = eager
            attention.register_forward_hook(lambda _, __, output, index=index: self.weights.update({index: output[1]}))

    def loss(self, guides: Tensor) -> Tensor:
        """Return the negative log of the attention that the guided heads pay to the positions in `guides`.

        Args:
            guides: As in `Batch.guides`, (2, B, L, T) bool. Tokens without any position do not count.
        """
        losses = []
        for index, guide in zip((PREVIOUS_LAYER, CURRENT_LAYER), guides, strict=True):
            inside = (self.weights[index][:, :GUIDED_HEADS].float() * guide[:, None]).sum(-1)
            guided = guide.any(-1)[:, None].expand_as(inside)
            losses.append(-inside[guided].clamp_min(1e-5).log().mean())
        return torch.stack(losses).sum()


def encode(model: WhisperForConditionalGeneration, features: Tensor, offset: int) -> Tensor:
    """Run the model's encoder on windows of any length that begin at the encoder position `offset`."""
    encoder = model.model.encoder
    states = F.gelu(encoder.conv2(F.gelu(encoder.conv1(features)))).permute(0, 2, 1)
    states = states + encoder.embed_positions.weight[offset : offset + states.shape[1]]
    for layer in encoder.layers:
        states = layer(states, None)
    encoded: Tensor = encoder.layer_norm(states)
    return encoded


def losses(network: ModelWithAuxiliaryHeads, attention: GuidedAttention, batch: Batch) -> tuple[Tensor, Tensor, float]:
    """Return the language-model loss, the loss of auxiliary and guided heads, and the token accuracy (0 to 1)."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        encoded = encode(network.model, batch.features, batch.offset)
        logits = network.model(
            encoder_outputs=(encoded,), decoder_input_ids=batch.inputs, use_cache=False
        ).logits.float()
        guidance = network.auxiliary(encoded, batch.positions) + 0.4 * attention.loss(batch.guides)
    text = F.cross_entropy(logits.flatten(0, 1), batch.labels.flatten(), ignore_index=IGNORED_LABEL)
    labelled = batch.labels != IGNORED_LABEL
    accuracy = (logits.argmax(-1) == batch.labels)[labelled].float().mean().item()
    return text, guidance, accuracy


def train_phase(
    network: ModelWithAuxiliaryHeads, phase: Phase, batches: WindowBatches, out: Path, processor: WhisperProcessor
) -> ModelWithAuxiliaryHeads:
    """Train for one phase; save the averaged model to `out` after every 500 steps and at the end.

    Returns:
        The running average of the network.
    """
    average = copy.deepcopy(network).eval()
    attention = GuidedAttention(network)
    network.train()
    parameters = [p for p in network.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": 0.02},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=phase.rates[0], betas=(0.9, 0.98), fused=True)
    start, shown = time.monotonic(), {"text": 0.0, "guidance": 0.0, "accuracy": 0.0}
    for step, batch in enumerate(
        torch.utils.data.DataLoader(batches, batch_size=None, num_workers=1, prefetch_factor=4)
    ):
        rate, weight = (a + (b - a) * step / phase.steps for a, b in (phase.rates, phase.guidance))
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1, (step + 1) / WARM_UP_STEPS)
        text, guidance, accuracy = losses(network, attention, batch)
        optimizer.zero_grad()
        (text + weight * guidance).backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        decay = min(AVERAGE_DECAY, step / (step + 10))
        get_ema_multi_avg_fn(decay)(list(average.parameters()), list(network.parameters()), step)
        for name, value in (("text", text.item()), ("guidance", guidance.item()), ("accuracy", accuracy)):
            shown[name] += (value - shown[name]) * max(0.02, 1 / (step + 1))
        if step % 50 == 49:
            figures = " ".join(f"{name} {value:.4f}" for name, value in shown.items())
            print(f"step {step + 1}/{phase.steps} {time.monotonic() - start:.0f} s {figures}", flush=True)
        if step % 500 == 499 or step + 1 == phase.steps:
            average.model.save_pretrained(out)
            processor.save_pretrained(out)
        if step + 1 == phase.steps:
            break
    return average


def load_utterances(cache: Path, processes: int) -> list[StoredUtterance]:
    """Return all utterances of the training; if the file `cache` does not exist, make them and write it."""
    if not cache.exists():
        started = time.monotonic()
        with multiprocessing.get_context("spawn").Pool(processes) as pool:
            blocks = pool.starmap(make_utterances, [(seed, BLOCK_UTTERANCES) for seed in range(BLOCKS)], chunksize=1)
        cache.parent.mkdir(parents=True, exist_ok=True)
        rows = [(torch.from_numpy(s.mel), [tuple(w) for w in s.words]) for block in blocks for s in block]
        torch.save(rows, cache)
        print(f"{len(rows)} utterances in {time.monotonic() - started:.0f} s", flush=True)
    return [StoredUtterance(mel.numpy(), [Word(*w) for w in words]) for mel, words in torch.load(cache)]


def train(options: argparse.Namespace) -> None:
    """Train all phases from `options.phase` on; each starts from what the previous one left in `options.work`."""
    processor = build_processor()
    labeller = Labeller(processor)
    utterances = load_utterances(options.work / "utterances.pt", options.threads)
    for number, phase in enumerate(phases(options.steps, options.running), start=1):
        if number < options.phase:
            continue
        torch.manual_seed(options.seed + number)
        network = ModelWithAuxiliaryHeads(processor)
        if number > 1:
            network.load_state_dict(torch.load(options.work / f"phase-{number - 1}.pt"))
        print(f"phase {number}: {phase}", flush=True)
        batches = WindowBatches(utterances, labeller, phase, options.seed + number)
        network = train_phase(network, phase, batches, options.out, processor)
        torch.save(network.state_dict(), options.work / f"phase-{number}.pt")


def main() -> None:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[2] / "models" / "speech")
    parser.add_argument(
        "--work", type=Path, required=True, help="folder for the utterances and the weights after each phase"
    )
    parser.add_argument(
        "--steps", type=int, nargs=4, default=(2800, 1300, 800, 1500), help="number of steps of each phase"
    )
    parser.add_argument("--phase", type=int, choices=(1, 2, 3, 4), default=1, help="phase to begin with")
    parser.add_argument(
        "--running",
        type=float,
        default=0.5,
        help="fraction of windows cut out of running speech in the last two phases",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(options.threads)
    train(options)


if __name__ == "__main__":
    main()
