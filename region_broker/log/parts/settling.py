"""What is not durable yet of a cut: whoever comes first makes it so, the thread that was asked for it or a step that cannot wait (INV-CTJ2).

Not here: the cut (`trimmer`), what is synced (`journal.cut_job`).
"""

from region_broker.log.journal.cut_job import SettlingJob
from region_broker.log.journal.sync_job import FileSync
from region_broker.log.parts.content import LogContent


def begin_settling(content: LogContent, files: FileSync) -> SettlingJob | None:
    """Return what makes the last cut durable; None where it is. Again for each who asks until then: nobody goes on before."""
    end = content.unsettled
    return None if end is None else SettlingJob(files, files.generation, end)


def finish_settling(content: LogContent, job: SettlingJob) -> bool:
    """Take in what came of it, the log stops if the disk failed; return whether the cut is durable by this one."""
    is_void = job.generation != job.files.generation  # closed, or left: others see to it
    if not job.is_done or is_void or job.end is not content.unsettled:
        return False
    if job.error is not None:
        content.fail(f"syncing the cut of {content.folder} failed: {job.error}")
        return False
    content.unsettled = None
    return True
