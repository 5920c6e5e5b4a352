"""A speech model as TorchServe runs it, and files as the client reads them, both in this process."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

from reelscribe import wire
from reelscribe.contract.descriptions import SpeechDescription
from reelscribe.contract.outcomes import Silence, Utterance
from reelscribe.contract.speech import ChunkTranscript, SampleArray
from reelscribe.decode.audio import Audio, AudioChunk, SilenceDetector
from reelscribe.results.batches import SavedAudioBatch, TimedTranscript, audio_results
from reelscribe.run.tracks.transcripts import SpeechOptions
from speech_handler import SpeechHandler
from transcripts.speech_model import SpeechSettings
from worker.request_batch import Unread


def compute_on_one_thread() -> None:
    """Let this process, and what it loads, compute on one thread and be silent; starts the command again if needed."""
    if os.environ.get("OMP_NUM_THREADS") != "1":
        # numpy reads this variable when it is loaded, and faster-whisper computes its spectrograms with numpy.
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "OMP_NUM_THREADS": "1"})  # noqa: S606
    torch.set_num_threads(1)
    # The pipeline warns of arguments that it passes to itself.
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


class LocalSpeech:
    """The handler's model, called with the request bodies that the client sends."""

    def __init__(self, model: Path, **settings: Any) -> None:
        """Load the model; `settings` are those of SpeechSettings."""
        speech_settings = SpeechSettings(str(model), **settings)
        self._model = SpeechHandler().load_model(speech_settings, torch.device("cpu"), response_seconds=120)
        self.description = SpeechDescription.from_json(self._model.description)

    def transcribe_chunks(self, chunks: Sequence[SampleArray], options: SpeechOptions) -> Iterator[ChunkTranscript]:
        """Yield the transcript of each chunk, (N,) int16 at the model's rate."""
        size = options.batch_size(self.description)
        for at in range(0, len(chunks), size):
            tree: Any = {**options.transcription.to_json(), "sample_rate": self.description.sample_rate}
            tree["chunks"] = list(chunks[at : at + size])
            yield from self.answer(wire.pack(tree))

    def answer(self, body: Sequence[wire.Segment]) -> list[ChunkTranscript]:
        """Return the transcript of each chunk of a request."""
        request = self._model.new_reader()({"body": bytearray().join(body)}, {})
        assert not isinstance(request, Unread), "arrays at the model's rate are read at once"
        (transcripts,) = self._model.batches.map([request.items])
        assert isinstance(transcripts, list), transcripts
        return transcripts

    def transcribe_recordings(self, recordings: Sequence[SampleArray], options: SpeechOptions) -> list[str]:
        """Return the text of each recording, (N,) int16 at the model's rate, cut as the client does."""
        task = options.task("", self.description)  # no file: it only makes chunkers
        silence = SilenceDetector(task.sample_rate, task.silence_db, vad=task.vad)
        chunks: list[list[SampleArray]] = []
        for samples in recordings:
            chunker = task.chunker()
            chunks.append([c for c in (*chunker.push(samples), *chunker.flush()) if not silence.is_silent(c)])
        transcripts = self.transcribe_chunks([chunk for each in chunks for chunk in each], options)
        return [" ".join(next(transcripts).text for _ in each) for each in chunks]

    def transcribe_files(self, paths: Sequence[Path], options: SpeechOptions) -> list[SavedAudioBatch]:
        """Return the result of each file. Chunks of short files share requests."""
        files = [self._chunks(path, options) for path in paths]
        samples = [chunk.samples for chunks in files for chunk in chunks if not chunk.silent]
        transcripts = self.transcribe_chunks(samples, options)
        return [self._saved_batch(chunks, transcripts) for chunks in files]

    def _chunks(self, path: Path, options: SpeechOptions) -> list[AudioChunk]:
        with Audio(options.task(str(path), self.description)) as audio:
            return list(audio.chunks())

    def _saved_batch(self, chunks: list[AudioChunk], transcripts: Iterator[ChunkTranscript]) -> SavedAudioBatch:
        def times(chunk: AudioChunk) -> tuple[float, float]:
            return chunk.start_seconds, chunk.start_seconds + len(chunk.samples) / self.description.sample_rate

        transcribed = [TimedTranscript(*times(chunk), next(transcripts)) for chunk in chunks if not chunk.silent]
        silences = [Silence(*times(chunk)) for chunk in chunks if chunk.silent]
        return SavedAudioBatch(chunks[0].first, chunks[-1].stop, transcripts=transcribed, silences=silences)


def utterances(batch: SavedAudioBatch) -> list[Utterance]:
    """The utterances of a file on its timeline."""
    return [result for result in audio_results([batch]) if isinstance(result, Utterance)]
