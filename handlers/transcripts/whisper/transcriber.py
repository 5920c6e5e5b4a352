"""The second stage of Whisper: turns the encoder's states of windows into transcripts.

A window is the stretch of audio that the encoder takes at once. As the stages may run in different processes, windows
and their transcripts are sent as trees of plain values. A window whose text ends in a loop is decoded again at the next
temperature; other windows are not. If no temperature helps, the most probable text is kept.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import torch

from reelscribe.contract.fields import round_confidence
from reelscribe.contract.speech import ENGLISH, ChunkTranscript, SpeechSegment, TranscriptionOptions, Word
from runtime.second_stage import TensorTree
from transcripts.speech_model import Samples, SpeechSettings, round_seconds
from transcripts.whisper.engine_interface import DecodedTokens, WhisperEngine, WindowBatch
from transcripts.whisper.languages import SpokenLanguage, spoken_languages
from transcripts.whisper.previous_text import PreviousText
from transcripts.whisper.tokens import split_segments
from transcripts.whisper.word_alignment import time_words
from transcripts.word_trimming import audible_seconds

LOOP_ROUNDS = 4
"""Number of times that the end of a text is repeated without anything between, from which on it is a loop."""


@dataclass(frozen=True)
class Window:
    """A window as the second stage gets it, besides the encoder's states."""

    options: TranscriptionOptions
    duration: float
    """Length of the audio, in seconds."""
    audible: float
    """When its last sound ends, in seconds."""
    seeds: tuple[int, ...]
    """A seed for each temperature."""

    @classmethod
    def of(
        cls, samples: Samples, options: TranscriptionOptions, sample_rate: int, temperatures: Sequence[float]
    ) -> Window:
        """Make the window of some audio.

        Seeds are hashes of the audio: for equal audio, a temperature draws equal tokens, in every batch and process.

        Args:
            samples: The audio, (N,) at `sample_rate`.
            options: How to transcribe it.
            sample_rate: In Hz.
            temperatures: The temperatures that may be tried.
        """
        digest = hashlib.sha256(samples.tobytes())
        seeds = tuple(_seed(digest, t) for t in temperatures)
        return cls(options, len(samples) / sample_rate, audible_seconds(samples, sample_rate), seeds)

    def without_previous_text(self) -> Window:
        """Return the window without an initial prompt and hot words."""
        return replace(self, options=replace(self.options, initial_prompt=None, hotwords=None))

    @classmethod
    def from_tree(cls, tree: TensorTree) -> Window:
        """Read what `to_tree` returned."""
        options, seeds = TranscriptionOptions(**tree["options"]), tuple(tree["seeds"])
        return cls(options, tree["duration"], tree["audible"], seeds)

    def to_tree(self) -> TensorTree:
        """Make a tree that can be sent to the second stage."""
        tree: TensorTree = _with_lists(asdict(self))
        return tree


class TranscribedWindow(NamedTuple):
    """The output of the second stage for a window."""

    transcript: ChunkTranscript
    """Its times count from the start of the window."""
    end: float
    """Seconds from the start of the window up to which it is transcribed; the rest of the window needs another pass."""
    token_count: int
    """Number of generated tokens, at all temperatures together."""

    @classmethod
    def from_tree(cls, tree: TensorTree) -> TranscribedWindow:
        """Read what `to_tree` returned."""
        return cls(ChunkTranscript.from_json(tree["transcript"]), tree["end"], tree["tokens"])

    def to_tree(self) -> TensorTree:
        """Make a tree that can be sent to the first stage."""
        return {"transcript": _with_lists(self.transcript.to_json()), "end": self.end, "tokens": self.token_count}


def _with_lists(value: Any) -> Any:
    """The value with lists instead of tuples, which cannot be sent."""
    if isinstance(value, dict):
        return {name: _with_lists(item) for name, item in value.items()}
    return [_with_lists(item) for item in value] if isinstance(value, (list, tuple)) else value


def _seed(digest: hashlib._Hash, temperature: float) -> int:
    copy = digest.copy()
    copy.update(str(temperature).encode())
    return int.from_bytes(copy.digest()[:8], "little", signed=True)


CERTAIN_SPEECH = 0.1
"""Up to this probability of no speech, somebody speaks."""

NO_SPEECH_LOGPROB_WEIGHT = 0.4
"""Weight of the average log-probability of a text beside the probability of no speech. Of whisper-tiny.en, single words
have up to 0.74 together (one of 63 has 0.98), long speech up to 0.4, and all but a tenth of sounds more than 0.8."""


@dataclass(frozen=True)
class Thresholds:
    """Decides whether a decoding result is kept. A threshold that is None has no effect.

    Two rules of openai/whisper (transcribe.py) are others here. There, any text that repeats itself or is improbable is
    decoded again. But people repeat themselves, too, and short words are improbable, and no clearer at a higher
    temperature; here, only a loop is decoded again. And there, text is dropped if nobody seems to speak and the text is
    improbable, each by a threshold of its own; but short words are as improbable as what a model invents for sounds, so
    here both count together.
    """

    compression_ratio: float | None
    """A higher compression ratio means that the text repeats itself. It is decoded again if it ends in a loop."""
    no_speech: float | None
    """A higher probability of no speech, with NO_SPEECH_LOGPROB_WEIGHT times the average log-probability subtracted,
    means that nobody speaks."""

    def needs_fallback(self, compression_ratio: float, *, ends_in_loop: bool) -> bool:
        """Return whether to decode again at a higher temperature: the text has got into a loop."""
        return self.compression_ratio is not None and compression_ratio > self.compression_ratio and ends_in_loop

    def is_no_speech(self, avg_logprob: float, no_speech_prob: float) -> bool:
        """Return whether to drop the text, because nobody speaks."""
        score = no_speech_prob - NO_SPEECH_LOGPROB_WEIGHT * avg_logprob
        return self.no_speech is not None and score > self.no_speech


class _DecodingResult(NamedTuple):
    """The text of one window, generated at one temperature."""

    tokens: list[int]
    text: str
    avg_logprob: float
    no_speech_prob: float
    temperature: float

    @property
    def compression_ratio(self) -> float:
        """Size of the text divided by its compressed size; high for text that repeats itself."""
        data = self.text.encode()
        return len(data) / len(zlib.compress(data))

    def ends_in_loop(self, first_timestamp: int) -> bool:
        """Return whether its last text tokens are the same ones again and again, LOOP_ROUNDS times at least."""
        return _ends_in_loop([token for token in self.tokens if token < first_timestamp])

    def has_loop(self, first_timestamp: int) -> bool:
        """Return whether text tokens anywhere in it are the same ones again and again, LOOP_ROUNDS times at least."""
        text = [token for token in self.tokens if token < first_timestamp]
        return any(_ends_in_loop(text[:stop]) for stop in range(LOOP_ROUNDS, len(text) + 1))


def _ends_in_loop(text: list[int]) -> bool:
    longest = len(text) // LOOP_ROUNDS
    ends = (text[-LOOP_ROUNDS * unit :] for unit in range(1, longest + 1))
    return any(end == end[: len(end) // LOOP_ROUNDS] * LOOP_ROUNDS for end in ends)


def _alike(windows: list[Window], prompts: list[list[int]], rows: list[int]) -> dict[tuple[int, int], list[int]]:
    """The rows of windows that can be generated together, by the length of their prompts and the number of beams."""
    groups: dict[tuple[int, int], list[int]] = {}
    for i in rows:
        groups.setdefault((len(prompts[i]), windows[i].options.beams), []).append(i)
    return groups


class WindowTranscriber:
    """Transcribes encoded windows with an engine."""

    def __init__(self, engine: WhisperEngine, tokenizer: Any, settings: SpeechSettings) -> None:
        """Set up the second stage.

        Args:
            engine: The engine; its encoder is not needed.
            tokenizer: The tokenizer of the model.
            settings: Language, temperatures, thresholds and limit of tokens.
        """
        self._engine, self._tokenizer, self._settings = engine, tokenizer, settings
        self._previous_text = PreviousText(tokenizer, engine.positions)
        self._thresholds = Thresholds(settings.compression_ratio_threshold, settings.no_speech_threshold)

    def transcribe(self, tree: TensorTree) -> TensorTree:
        """Transcribe a batch of windows; this is the `StageFunction` of Whisper.

        Args:
            tree: What `WhisperModel.encode` returned, for B windows.

        Returns:
            {"windows": B trees of `TranscribedWindow`}.
        """
        windows = [Window.from_tree(window) for window in tree["windows"]]
        with torch.inference_mode():
            batch = self._engine.batch(tree["states"])
            if tree["rows"] != list(range(len(batch))):
                batch = batch.select(tree["rows"])
            return {"windows": [window.to_tree() for window in self._transcribe(windows, batch)]}

    def _transcribe(self, windows: list[Window], batch: WindowBatch) -> list[TranscribedWindow]:
        known = self._engine.tokens.languages
        usual = known if self._settings.language is None else (self._settings.language,)
        spoken = spoken_languages(batch, known, [window.options.languages or usual for window in windows])
        languages = [each.code for each in spoken]
        results, token_counts = self._generate(windows, languages, batch)
        self._drop_invented(windows, languages, batch, results, token_counts)
        return [
            self._decode(window, language, batch, row, result, token_count)
            for row, (window, language, result, token_count) in enumerate(
                zip(windows, spoken, results, token_counts, strict=True)
            )
        ]

    def _generate(
        self, windows: list[Window], languages: list[str], batch: WindowBatch
    ) -> tuple[list[_DecodingResult], list[int]]:
        """The final result of each window, and how many tokens were generated for it at all temperatures together."""
        results: dict[int, _DecodingResult] = {}
        token_counts = [0] * len(windows)
        remaining = list(range(len(windows)))
        prompts = [self._prompt(window.options, language) for window, language in zip(windows, languages, strict=True)]
        for attempt, temperature in enumerate(self._settings.temperatures):
            decoded: dict[int, DecodedTokens] = {}
            for (_, beams), rows in _alike(windows, prompts, remaining).items():
                generated = (batch if len(rows) == len(windows) else batch.select(rows)).generate(
                    [prompts[i] for i in rows],
                    [self._settings.token_limit(windows[i].duration) for i in rows],
                    temperature,
                    [windows[i].seeds[attempt] for i in rows],
                    beams,
                )
                decoded.update(zip(rows, generated, strict=True))
            loops: list[int] = []
            for i in remaining:
                tokens, avg_logprob, no_speech_prob = decoded[i]
                result = _DecodingResult(tokens, self._text(tokens), avg_logprob, no_speech_prob, temperature)
                token_counts[i] += len(tokens)
                if self._needs_fallback(result):
                    loops.append(i)
                    result = max(results.get(i, result), result, key=lambda each: each.avg_logprob)
                results[i] = result
            remaining = loops
            if not remaining:
                break
        return [results[i] for i in range(len(windows))], token_counts

    def _drop_invented(
        self,
        windows: list[Window],
        languages: list[str],
        batch: WindowBatch,
        results: list[_DecodingResult],
        token_counts: list[int],
    ) -> None:
        """Replace the results of windows for which what was said before makes the model invent words.

        Given words, Whisper is sure to hear one of them in a sound. So where there may be no speech, the window is
        decoded without them, too, and that decides. And after a list of words, it sometimes goes on with one of them
        for ever; such a window is what it is without them.
        """
        first_timestamp = self._engine.tokens.first_timestamp
        loops = [  # only where it matters, as it takes milliseconds
            bool(window.options.previous_text) and result.has_loop(first_timestamp)
            for window, result in zip(windows, results, strict=True)
        ]
        doubtful = [
            i
            for i, (window, result, loop) in enumerate(zip(windows, results, loops, strict=True))
            if window.options.previous_text
            and (loop or result.no_speech_prob > CERTAIN_SPEECH)
            and not self._is_no_speech(result)
        ]
        if not doubtful:
            return
        plain = [windows[i].without_previous_text() for i in doubtful]
        generated = self._generate(plain, [languages[i] for i in doubtful], batch.select(doubtful))
        for i, result, count in zip(doubtful, *generated, strict=True):
            token_counts[i] += count
            if loops[i] or self._is_no_speech(result):
                results[i] = result

    def _prompt(self, options: TranscriptionOptions, language: str) -> list[int]:
        """The tokens before those of a window."""
        previous = self._previous_text.tokens(options.previous_text)
        return [*previous, *self._engine.tokens.prompt(language, options.task)]

    def _needs_fallback(self, result: _DecodingResult) -> bool:
        if self._is_no_speech(result):  # silence is no clearer at another temperature
            return False
        ends_in_loop = result.ends_in_loop(self._engine.tokens.first_timestamp)
        return self._thresholds.needs_fallback(result.compression_ratio, ends_in_loop=ends_in_loop)

    def _is_no_speech(self, result: _DecodingResult) -> bool:
        return self._thresholds.is_no_speech(result.avg_logprob, result.no_speech_prob)

    def _decode(
        self,
        window: Window,
        language: SpokenLanguage,
        batch: WindowBatch,
        row: int,
        result: _DecodingResult,
        token_count: int,
    ) -> TranscribedWindow:
        """The transcript of the window in a row of the batch; empty if the window holds no speech."""
        duration = window.duration
        empty = ChunkTranscript(
            text="",
            language=language.code,
            segments=(),
            no_speech_prob=round_confidence(result.no_speech_prob),
            avg_logprob=round_confidence(result.avg_logprob),
            compression_ratio=round(result.compression_ratio, 3),
            temperature=result.temperature,
            language_probability=language.probability,
        )
        if self._is_no_speech(result):
            return TranscribedWindow(empty, duration, token_count)
        first_timestamp = self._engine.tokens.first_timestamp
        segments, resume_at = split_segments(result.tokens, first_timestamp, duration, window.audible)
        texts = [self._text(segment.tokens) for segment in segments]
        words: Sequence[tuple[Word, ...] | None] = [None] * len(segments)
        if window.options.word_times and segments:
            prompt = self._engine.tokens.prompt(language.code, window.options.task, timestamps=False)
            aligned = batch.select([row]).align(prompt, segments, duration)
            written = ENGLISH if window.options.task == "translate" else language.code
            words = time_words(self._tokenizer, segments, aligned, written)
        speech_segments = tuple(
            SpeechSegment(
                round_seconds(segment.start), round_seconds(segment.end), text.strip(), timed, empty.avg_logprob
            )
            for segment, text, timed in zip(segments, texts, words, strict=True)
            if text.strip()
        )
        transcript = replace(empty, text="".join(texts).strip(), segments=speech_segments)
        return TranscribedWindow(transcript, duration if resume_at is None else resume_at, token_count)

    def _text(self, tokens: list[int]) -> str:
        """The text of tokens without timestamps. It may start with a space."""
        text: str = self._tokenizer.decode([token for token in tokens if token < self._engine.tokens.first_timestamp])
        return text
