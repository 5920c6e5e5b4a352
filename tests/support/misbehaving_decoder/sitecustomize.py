"""Makes decode processes misbehave over files whose names say so.

Python imports this module at its start if this folder is on PYTHONPATH. A file that is called `crash`, `hang`, `fail`
or `print` does so at ordinal 20 of its frames or clips, at frame 20 while its shots are looked for, or 3 s into its
audio. Video misbehaves only with PyAV, not with decord, and audio only the first time; `crash-always.mkv` and the like
do so every time. A process that is about to hang writes a character to the file that the environment variable HANGS
names, if there is one.
"""

import os
import signal
import sys
from pathlib import Path

if "reelscribe.decode_pool.worker" in sys.orig_argv:
    from reelscribe.decode import clip_video, video
    from reelscribe.decode.sound import audio

    def fail():
        raise RuntimeError("out of luck")

    def hang():
        if reports := os.environ.get("HANGS"):
            Path(reports).write_text("h")
        signal.pause()

    WAYS = {
        "crash": lambda: os.kill(os.getpid(), signal.SIGSEGV),
        "hang": hang,
        "fail": fail,
        "print": lambda: os.write(1, b"[codec] what a picture\n"),
    }

    class Misbehaving:
        def __init__(self, task, heartbeat):
            way, _, always = Path(task.path).stem.partition("-")
            self.misbehave = None if task.library == "decord" and not always else WAYS.get(way)
            self.opening = True
            super().__init__(task, heartbeat)
            self.opening = False

        def pictures(self, wanted, *, drops=None):
            for index, picture in super().pictures(wanted, drops=drops):
                if self.opening and index == 20 and self.misbehave:
                    self.misbehave()
                yield index, picture

    class MisbehavingVideo(Misbehaving, video.Video):
        def frames(self, ordinals, *others):
            for frame in super().frames(ordinals, *others):
                if frame.ordinal == 20 and self.misbehave:
                    self.misbehave()
                yield frame

    class MisbehavingClips(Misbehaving, clip_video.ClipVideo):
        def read(self, spans):
            self.opening = self.count is None  # shots are looked for
            for read in super().read(spans):
                if read.clip.ordinal == 20 and self.misbehave:
                    self.misbehave()
                yield read

    class MisbehavingAudio(audio.Audio):
        def __init__(self, task, heartbeat):
            super().__init__(task, heartbeat)
            way, _, always = Path(task.path).stem.partition("-")
            self.misbehave, self.always, self.mark = WAYS.get(way), always, Path(f"{task.path}.misbehaved")

        def chunks(self, first=0):
            for chunk in super().chunks(first):
                if chunk.start_seconds >= 3 and self.misbehave and (self.always or not self.mark.exists()):
                    self.mark.touch()
                    self.misbehave()
                yield chunk

    video.Video, audio.Audio, clip_video.ClipVideo = MisbehavingVideo, MisbehavingAudio, MisbehavingClips
