"""Whisper's code with tiny models of random weights: the text they generate does not matter here."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoModelForSpeechSeq2Seq, AutoProcessor

from reelscribe.contract.speech import TranscriptionOptions
from reelscribe.errors import PromptError, StartupError
from support.alike import assert_alike
from support.audio import noise
from support.tiny_models import save_whisper
from transcripts.speech_model import Chunk, SpeechSettings
from transcripts.whisper.ctranslate2_conversion import convert
from transcripts.whisper.engine_interface import DecodedTokens
from transcripts.whisper.model import WhisperModel
from transcripts.whisper.torch_engine import TorchBatch
from transcripts.whisper.transcriber import NO_SPEECH_LOGPROB_WEIGHT

CPU = torch.device("cpu")
RATE = 16_000
GREEDY = {"timestamps": False, "temperatures": (0.0,), "no_speech_threshold": None}


@pytest.fixture(scope="module")
def directory(tmp_path_factory, demo_speech) -> str:
    return save_whisper(tmp_path_factory.mktemp("whisper"), AutoProcessor.from_pretrained(demo_speech))


@pytest.fixture(scope="module")
def converted(directory, tmp_path_factory) -> str:
    """The same model for CTranslate2."""
    folder = tmp_path_factory.mktemp("converted") / "model"
    convert(directory, str(folder), "auto")
    return str(folder)


@pytest.fixture(scope="module", params=["torch", "ctranslate2"])
def engine(request) -> dict[str, str]:
    """The settings of each engine."""
    if request.param == "torch":
        return {}
    return {"engine": request.param, "converted": request.getfixturevalue("converted")}


def load(directory: str, **settings) -> WhisperModel:
    return WhisperModel(SpeechSettings(directory, **settings), CPU)


NOISES = [noise(seconds, seed) for seed, seconds in enumerate([1, 2.5, 0.01, 4, 1, 1])]


def chunks(recordings: list[np.ndarray], **options) -> list[Chunk]:
    return [Chunk(recording, TranscriptionOptions(**options)) for recording in recordings]


def test_window_and_capabilities_come_from_the_files_of_the_model(tmp_path, demo_speech):
    as_large_ones = {"window_seconds": 30, "mels": 128}
    weights = save_whisper(tmp_path, AutoProcessor.from_pretrained(demo_speech), **as_large_ones)
    model = load(weights, **GREEDY, tokens_per_second=1)
    assert (model.sample_rate, model.chunk_seconds) == (RATE, 30)
    assert (model.languages, model.tasks) == (("de", "en"), ("transcribe", "translate", "both"))
    assert model.word_times
    assert model.transcribe(chunks([noise(29, 1)], word_times=True))


def test_greedy_text_and_its_probability_are_those_of_transformers(directory, engine):
    got = load(directory, **engine, **GREEDY, tokens_per_second=1).transcribe(chunks(NOISES[:2], language="de"))
    processor = AutoProcessor.from_pretrained(directory)
    model = AutoModelForSpeechSeq2Seq.from_pretrained(directory).eval()
    for recording, transcript, budget in zip(NOISES[:2], got, [11, 13], strict=True):
        features = processor(recording, sampling_rate=RATE, return_tensors="pt").input_features
        mask = torch.ones(features.shape[::2])
        options = {"language": "de", "task": "transcribe", "max_new_tokens": budget, "attention_mask": mask}
        output = model.generate(features, **options, output_scores=True, return_dict_in_generate=True)
        assert transcript.text == processor.decode(output.sequences[0], skip_special_tokens=True).strip()
        logprobs = [scores[0].log_softmax(-1).max().item() for scores in output.scores]
        assert transcript.avg_logprob == pytest.approx(sum(logprobs) / (budget + 1), abs=2e-3)
        assert transcript.segments[0].end == len(recording) / RATE


@pytest.mark.parametrize("settings", [{"tokens_per_second": 3}, GREEDY])
def test_a_transcript_does_not_depend_on_the_other_chunks_of_a_batch(directory, engine, settings):
    model = load(directory, **engine, **settings)
    together = model.transcribe(chunks(NOISES, word_times=True))
    assert_alike(together, [model.transcribe([chunk])[0] for chunk in chunks(NOISES, word_times=True)])
    assert_alike(together, model.transcribe(chunks(NOISES[::-1], word_times=True))[::-1])
    assert len({str(transcript) for transcript in together}) == len(NOISES)


def test_requests_of_several_kinds_run_together(directory, engine):
    model = load(directory, **engine, **GREEDY)
    mixed = [
        chunks([recording], **options)[0]
        for recording, options in zip(
            NOISES, [{"language": "de"}, {"word_times": True}, {"task": "translate"}], strict=False
        )
    ]
    assert_alike(model.transcribe(mixed), [model.transcribe([chunk])[0] for chunk in mixed])


@pytest.mark.parametrize("settings", [{"tokens_per_second": 3}, GREEDY])
def test_a_transcript_and_its_translation_are_those_of_each_alone(directory, engine, settings):
    model = load(directory, **engine, **settings)
    said, translated, both = (
        model.transcribe(chunks(NOISES, task=task, word_times=True)) for task in ("transcribe", "translate", "both")
    )
    heard = [
        other if one.text else replace(other, text="", segments=()) for one, other in zip(said, translated, strict=True)
    ]
    assert_alike(both, [replace(one, translation=other) for one, other in zip(said, heard, strict=True)])
    assert_alike(both, [model.transcribe([chunk])[0] for chunk in chunks(NOISES, task="both", word_times=True)])
    assert {each.text for each in said} != {each.text for each in translated}


def test_audio_is_encoded_once_for_both_texts(directory, engine, monkeypatch):
    model = load(directory, **engine, **GREEDY)
    encode, encoded = model.engine.encode, []
    monkeypatch.setattr(model.engine, "encode", lambda features: encoded.append(len(features)) or encode(features))
    model.transcribe([*chunks(NOISES[:2], task="both"), *chunks(NOISES[3:4])])
    assert encoded == [3]


def test_the_language_is_given_or_set_or_detected(directory, engine):
    for settings, options in (({}, {"language": "de"}), ({"language": "de"}, {})):
        (transcript,) = load(directory, **engine, **GREEDY, **settings).transcribe(chunks(NOISES[:1], **options))
        assert (transcript.language, transcript.language_probability) == ("de", None)
    (transcript,) = load(directory, **engine, **GREEDY).transcribe(chunks(NOISES[:1]))
    assert transcript.language in ("en", "de")
    assert 0.5 <= transcript.language_probability < 1


def test_a_language_is_detected_among_those_that_may_be_spoken(tmp_path, demo_speech):
    """Of probabilities p of all, those among some are p / (the sum of theirs)."""
    processor = AutoProcessor.from_pretrained(demo_speech)
    known = {f"<|{code}|>": 10 + k for k, code in enumerate(("cy", "de", "en", "fr"))}
    weights = save_whisper(tmp_path / "torch", processor, lang_to_id=known)
    convert(weights, str(tmp_path / "converted"), "auto")
    probabilities = {}
    for engine in ({}, {"engine": "ctranslate2", "converted": str(tmp_path / "converted")}):
        model = load(weights, **engine, **GREEDY, language="fr")
        everywhere = ",".join(model.languages)
        (most,) = model.transcribe(chunks(NOISES[:1], language=everywhere))
        others = [code for code in model.languages if code != most.language]
        pairs = [Chunk(NOISES[0], TranscriptionOptions(f"{code},{most.language}")) for code in others]
        among = model.transcribe([*pairs, *chunks(NOISES[:1])])
        assert [each.language for each in among] == [most.language] * 3 + ["fr"]
        assert among[-1].language_probability is None
        # p / (p + q) for each of the others, and the q and p are 1 together.
        odds = sum(1 / each.language_probability - 1 for each in among[:-1])
        assert most.language_probability == pytest.approx(1 / (1 + odds), abs=1e-3)
        probabilities[str(engine)] = most.language_probability
    torch_, ctranslate2_ = probabilities.values()
    assert torch_ == pytest.approx(ctranslate2_, abs=2e-3)


def test_text_is_dropped_where_nobody_seems_to_speak(directory, engine):
    (usual,) = load(directory, **engine, **GREEDY).transcribe(chunks(NOISES[:1]))
    assert usual.text
    score = usual.no_speech_prob - NO_SPEECH_LOGPROB_WEIGHT * usual.avg_logprob
    for threshold, text in ((score - 0.01, ""), (score + 0.01, usual.text), (None, usual.text)):
        settings = {**GREEDY, "no_speech_threshold": threshold}
        (transcript,) = load(directory, **engine, **settings).transcribe(chunks(NOISES[:1]))
        assert (transcript.text, bool(transcript.segments)) == (text, bool(text))
        assert_alike(transcript.no_speech_prob, usual.no_speech_prob)


def scripted(monkeypatch, model: WhisperModel, *passes: list[str]) -> list[int]:
    """Let the decoder write one script a pass, the last one for ever; returns how many windows each pass has."""
    number = AutoProcessor.from_pretrained(model.engine.model.name_or_path).tokenizer.convert_tokens_to_ids
    scripts, windows = list(passes), []

    def generate(self, prompts, budgets, temperature, seeds, beams):
        windows.append(len(self))
        script = scripts.pop(0) if len(scripts) > 1 else scripts[0]
        return [DecodedTokens(number(script), -0.1, 0.0)] * len(self)

    monkeypatch.setattr(TorchBatch, "generate", generate)
    return windows


def test_a_loop_is_decoded_again_and_speech_that_repeats_itself_is_not(directory, monkeypatch):
    model = load(directory)
    windows = scripted(monkeypatch, model, ["\u0120red"] * 40, ["\u0120star"])
    assert model.transcribe(chunks([noise(4, 1)]))[0].text == "star"
    assert windows == [1, 1]
    windows = scripted(monkeypatch, model, [*["\u0120red"] * 40, "\u0120star"])
    assert model.transcribe(chunks([noise(4, 1)]))[0].compression_ratio > 2.4
    assert windows == [1]


def test_only_windows_that_end_in_a_loop_are_decoded_again_at_the_next_temperature(directory, monkeypatch):
    model = load(directory, temperatures=(0.0, 0.5, 1.0))
    number = AutoProcessor.from_pretrained(model.engine.model.name_or_path).tokenizer.convert_tokens_to_ids
    loop, star = ["\u0120red"] * 40, ["\u0120star"]
    passes = [
        (0.0, [(star, -1.6), (loop, -0.1), (loop, -0.3)]),  # an improbable text is kept
        (0.5, [(["\u0120blue"], -1.4), (loop, -0.2)]),
        (1.0, [(loop, -0.4)]),
    ]

    def generate(self, prompts, budgets, temperature, seeds, beams):
        expected, results = passes.pop(0)
        assert temperature == expected
        return [DecodedTokens(number(script), logprob, 0.0) for script, logprob in results]

    monkeypatch.setattr(TorchBatch, "generate", generate)
    first, second, third = model.transcribe(chunks([noise(4, seed) for seed in range(3)]))
    assert [(t.text, t.temperature) for t in (first, second)] == [("star", 0.0), ("blue", 0.5)]
    assert (third.avg_logprob, third.temperature) == (-0.2, 0.5)  # of loops alone, the most probable one
    assert not passes


def test_where_a_model_stopped_early_the_remainder_is_decoded_again(directory, monkeypatch):
    model = load(directory)
    first = ["<|0.50|>", "\u0120red", "<|2.00|>", "<|2.00|>", "\u0120star"]
    windows = scripted(monkeypatch, model, first, ["<|0.20|>", "\u0120star", "<|1.50|>"])
    (transcript,) = model.transcribe(chunks([noise(4, 1)]))
    assert windows == [1, 1]
    assert transcript.text == "red star"
    assert [(s.start, s.end, s.text) for s in transcript.segments] == [(0.5, 2.0, "red"), (2.2, 3.5, "star")]


def test_a_transcript_and_its_translation_go_on_where_each_has_stopped(directory, monkeypatch):
    model = load(directory)
    number = AutoProcessor.from_pretrained(directory).tokenizer.convert_tokens_to_ids
    said = [["<|0.50|>", "\u0120red", "<|2.00|>", "<|2.00|>", "\u0120star"], ["<|0.20|>", "\u0120star", "<|1.50|>"]]
    translated = [
        ["<|0.00|>", "\u0120blue", "<|1.00|>", "<|1.00|>", "\u0120circle"],
        ["<|0.00|>", "\u0120circle", "<|2.00|>", "<|2.00|>", "\u0120green"],
        ["<|0.00|>", "\u0120green", "<|1.00|>"],
    ]

    def generate(self, prompts, limits, temperature, seeds, beams):
        translate = model.engine.tokens.tasks["translate"]
        scripts = [(translated if translate in prompt else said).pop(0) for prompt in prompts]
        return [DecodedTokens(number(script), -0.1, 0.0) for script in scripts]

    monkeypatch.setattr(TorchBatch, "generate", generate)
    (transcript,) = model.transcribe(chunks([noise(4, 1)], task="both"))
    spans = [[(s.start, s.end, s.text) for s in each.segments] for each in (transcript, transcript.translation)]
    assert spans == [
        [(0.5, 2.0, "red"), (2.2, 3.5, "star")],
        [(0.0, 1.0, "blue"), (1.0, 3.0, "circle"), (3.0, 4.0, "green")],
    ]


def test_words_of_a_translation_are_those_of_english(tmp_path, demo_speech, monkeypatch):
    processor = AutoProcessor.from_pretrained(demo_speech)
    chinese = {"<|zh|>": processor.tokenizer.convert_tokens_to_ids("<|zh|>")}
    model = load(save_whisper(tmp_path, processor, lang_to_id=chinese))
    scripted(monkeypatch, model, ["<|0.00|>", "\u0120whi", "te", "\u0120star", "<|2.00|>"])
    (transcript,) = model.transcribe(chunks([noise(2, 1)], task="both", word_times=True))
    words = [[word.text for word in each.segments[0].words] for each in (transcript, transcript.translation)]
    assert (transcript.translation.language, words) == ("zh", [["whi", "te", "star"], ["white", "star"]])


def test_a_model_that_never_ends_advances_by_at_least_a_second(directory, monkeypatch):
    model = load(directory)
    windows = scripted(monkeypatch, model, ["<|0.00|>", "\u0120red", "<|0.02|>", "<|0.02|>"])
    (transcript,) = model.transcribe(chunks([noise(4.5, 1)]))
    assert windows == [1] * 5
    assert [segment.start for segment in transcript.segments] == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_a_temperature_samples_tokens_by_their_probabilities(directory):
    model = load(directory, timestamps=False)
    draws = 1000
    with torch.inference_mode():
        states = model.encode(chunks(NOISES[:1]))["states"][:, :50].expand(draws, -1, -1)
        prompt = model.engine.tokens.prompt("en", "transcribe")
        written = model.engine.batch(states).generate([prompt] * draws, [1] * draws, 0.7, list(range(draws)))
        network = model.engine.model
        logits = network(encoder_outputs=(states[:1],), decoder_input_ids=torch.tensor([prompt])).logits[0, -1]
    probable = (logits.float() / 0.7).softmax(-1)
    top = probable.topk(5)
    drawn = [row.tokens[0] if row.tokens else None for row in written]
    for token, probability in zip(top.indices.tolist(), top.values.tolist(), strict=True):
        spread = (probability * (1 - probability) / draws) ** 0.5
        assert drawn.count(token) / draws == pytest.approx(probability, abs=4 * spread)


SAID = {"initial_prompt": "red circle", "hotwords": "star,blue\ngreen"}


def test_what_was_said_before_stands_in_front_as_in_transformers(directory, engine):
    model, recordings = load(directory, **engine, **GREEDY, tokens_per_second=1), NOISES[:2]
    got = model.transcribe(chunks(recordings, language="de", **SAID))
    processor = AutoProcessor.from_pretrained(directory)
    reference = AutoModelForSpeechSeq2Seq.from_pretrained(directory).eval()
    before = processor.get_prompt_ids("star, blue, green red circle", return_tensors="pt")
    for recording, transcript, budget in zip(recordings, got, [11, 13], strict=True):
        features = processor(recording, sampling_rate=RATE, return_tensors="pt").input_features
        options = {"language": "de", "task": "transcribe", "max_new_tokens": budget, "prompt_ids": before}
        (tokens,) = reference.generate(features, **options, attention_mask=torch.ones(features.shape[::2]))
        text = processor.decode(tokens, skip_special_tokens=True)
        assert transcript.text == text.removeprefix(" star, blue, green red circle").strip()
    plain = model.transcribe(chunks(recordings, language="de"))
    assert [each.text for each in plain] != [each.text for each in got]
    assert_alike([each.no_speech_prob for each in plain], [each.no_speech_prob for each in got])


def test_requests_with_other_prompts_and_beams_run_together(directory, engine):
    model = load(directory, **engine, **GREEDY, tokens_per_second=3)
    kinds = [{}, SAID, {"beams": 3}, {**SAID, "beams": 3}, {"hotwords": "star"}, {"initial_prompt": "blue"}]
    mixed = [chunks([NOISES[3]], **options, word_times=True)[0] for options in kinds]
    together = model.transcribe(mixed)
    assert_alike(together, [model.transcribe([chunk])[0] for chunk in mixed])
    assert len({transcript.avg_logprob for transcript in together}) >= 4  # one for each text before at least


def test_what_was_said_before_has_room_for_half_of_the_positions(directory, engine):
    model = load(directory, **engine, **GREEDY, tokens_per_second=100)
    longest = " ".join(["star"] * model.prompt_tokens)
    assert model.prompt_tokens == model.engine.positions // 2 - 1
    model.check_previous_text(longest)
    assert model.transcribe(chunks(NOISES[:1], initial_prompt=longest))[0].avg_logprob < 0
    for text, reason in [
        (f"{longest} star", f"at most {model.prompt_tokens} tokens together, .* got {model.prompt_tokens + 1}; leave"),
        ("star <|en|>", "expected no special tokens of the model"),
        ("star <|0.00|>", "expected no special tokens of the model"),
        ("a" * 10_001, "at most 10,000 letters, got 10,001"),
    ]:
        with pytest.raises(PromptError, match=reason):
            model.check_previous_text(text)


@pytest.mark.parametrize(
    ("no_speech_prob", "logprob_without", "text"),
    [(0.05, -9.0, "star"), (0.5, -0.5, "star"), (0.5, -1.0, "")],
)
def test_a_hot_word_is_dropped_where_nobody_seems_to_speak_without_it(
    directory, monkeypatch, no_speech_prob, logprob_without, text
):
    model = load(directory)
    number = AutoProcessor.from_pretrained(directory).tokenizer.convert_tokens_to_ids

    def generate(self, prompts, limits, temperature, seeds, beams):
        told = prompts[0][0] != model.engine.tokens.start
        return [DecodedTokens(number(["\u0120star"]), -0.1 if told else logprob_without, no_speech_prob)] * len(self)

    monkeypatch.setattr(TorchBatch, "generate", generate)
    assert [each.text for each in model.transcribe(chunks(NOISES[3:5], hotwords="star"))] == [text] * 2


def test_where_hot_words_make_a_loop_the_text_is_that_without_them(directory, monkeypatch):
    model = load(directory)
    number = AutoProcessor.from_pretrained(directory).tokenizer.convert_tokens_to_ids

    def generate(self, prompts, limits, temperature, seeds, beams):
        told = prompts[0][0] != model.engine.tokens.start
        script = ["\u0120red", *["\u0120star"] * 4, "\u0120blue"] if told else ["\u0120red", "\u0120circle"]
        return [DecodedTokens(number(script), -0.1, 0.0)] * len(self)

    monkeypatch.setattr(TorchBatch, "generate", generate)
    assert model.transcribe(chunks(NOISES[3:4], hotwords="star"))[0].text == "red circle"


def test_several_beams_find_a_more_probable_text_and_how_probable_it_is(directory, engine):
    model = load(directory, **engine, timestamps=False)
    network = AutoModelForSpeechSeq2Seq.from_pretrained(directory).eval()
    prompt, limits = model.engine.tokens.prompt("en", "transcribe"), [8, 5, 8]
    with torch.inference_mode():
        states = model.encode(chunks(NOISES[:3]))["states"]
        batch = model.engine.batch(states)
        greedy, found = (batch.generate([prompt] * 3, limits, 0.0, [0] * 3, beams) for beams in (1, 5))
        for row, result in enumerate(found):
            tokens = [*result.tokens, model.engine.tokens.end][: limits[row]]  # at its limit, a text ends anyway
            ids = torch.tensor([[*prompt, *tokens]])
            logits = network(encoder_outputs=(states[row : row + 1],), decoder_input_ids=ids).logits[0]
            logprobs = logits.log_softmax(-1)[len(prompt) - 1 : -1].gather(1, torch.tensor(tokens)[:, None])
            assert result.avg_logprob == pytest.approx(logprobs.sum().item() / (len(result.tokens) + 1), abs=1e-3)
    assert sum(result.avg_logprob for result in found) > sum(result.avg_logprob for result in greedy)


def test_the_number_of_tokens_is_limited_by_the_duration_of_the_audio(directory, engine):
    texts = {}
    for tokens_per_second in (1, 50):
        model = load(directory, **engine, **GREEDY, tokens_per_second=tokens_per_second)
        (transcript,) = model.transcribe(chunks([NOISES[1]]))
        texts[tokens_per_second] = transcript.text
    assert texts[50].startswith(texts[1])
    assert len(texts[50]) > len(texts[1])


def test_a_long_text_stays_within_the_decoder_s_positions(directory, engine):
    (transcript,) = load(directory, **engine, **GREEDY, tokens_per_second=1000).transcribe(chunks([noise(5, 7)]))
    assert transcript.text


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"language": "xx"}, "expected one of de, en, got xx"),
        ({"chunk_seconds": 6}, "expected at most 5, the model's window, got 6"),
        ({"chunk_seconds": 1}, "expected 2 or more, got 1"),
        ({"generation": {"num_beams": 5}}, "num_beams cannot be set"),
        ({"temperatures": []}, "expected numbers from 0 to 2"),
        ({"temperatures": [0, 3]}, "expected numbers from 0 to 2"),
    ],
)
def test_impossible_settings_are_refused_when_the_model_loads(directory, settings, reason):
    with pytest.raises(StartupError, match=reason):
        load(directory, **settings)


def test_a_model_without_whisper_s_generation_settings_is_refused(tmp_path, demo_speech):
    incomplete = save_whisper(tmp_path, AutoProcessor.from_pretrained(demo_speech), no_timestamps_token_id=None)
    with pytest.raises(StartupError, match="expected no_timestamps_token_id"):
        load(incomplete)
