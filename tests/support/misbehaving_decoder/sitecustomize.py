"""Makes decode processes misbehave over files whose names say so.

Python imports this module at its start if this folder is on PYTHONPATH. A file that is called `crash`, `hang`, `fail`
or `print` does so at ordinal 20 of its frames or clips, at frame 20 while its shots are looked for, or 3 s into its
audio, the first time only; `crash-always.mkv` and the like do so every time. A video that is
called `stuck` hangs before its first packet, every time. A process that is about to hang writes a
character to the file that the environment variable HANGS names, if there is one.
"""

import os
import signal
import sys
from pathlib import Path

if "reelscribe.decode_pool.child_main" in sys.orig_argv:
    from reelscribe.decode import audio, clips, video

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
        def __init__(self, task, heartbeat, *fetch):
            way, _, self.always = Path(task.path).stem.partition("-")
            self.way, self.mark = WAYS.get(way), Path(f"{task.path}.misbehaved")
            self.opening = True
            if way == "stuck":
                hang()
            super().__init__(task, heartbeat, *fetch)
            self.opening = False

        def misbehave(self):
            if self.way and (self.always or not self.mark.exists()):
                self.mark.touch()
                self.way()

    class MisbehavingFrames(Misbehaving):
        def decode(self, wanted, *, drop_disposable=None):
            for index, frame in super().decode(wanted, drop_disposable=drop_disposable):
                if self.opening and index == 20:
                    self.misbehave()
                yield index, frame

    class MisbehavingVideo(MisbehavingFrames, video.Video):
        def frames(self, ordinals, *others):
            for frame in super().frames(ordinals, *others):
                if frame.ordinal == 20:
                    self.misbehave()
                yield frame

    class MisbehavingClips(MisbehavingFrames, clips.ClipVideo):
        def read(self, spans):
            self.opening = self.count is None  # shots are looked for
            for read in super().read(spans):
                if read.clip.ordinal == 20:
                    self.misbehave()
                yield read

    class MisbehavingAudio(Misbehaving, audio.Audio):
        def chunks(self, first=0):
            for chunk in super().chunks(first):
                if chunk.start_seconds >= 3:
                    self.misbehave()
                yield chunk

    video.Video, audio.Audio, clips.ClipVideo = MisbehavingVideo, MisbehavingAudio, MisbehavingClips
