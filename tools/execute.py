"""Run notebooks and store their outputs in place, so that a second run changes nothing.

    python tools/execute.py [--no-run] [NOTEBOOK …]      (all of notebooks/ without names, drills too)

What changes from run to run or from machine to machine is not stored: time stamps, the versions of the
kernel, progress bars. What a cell publishes, with the alt text in its metadata, is. Cells that the book folds
are folded in JupyterLab too. With --no-run the notebooks are only brought into this form.
"""

import os
import sys
from pathlib import Path

import whole

ROOT = Path(__file__).resolve().parent.parent

# Inherited by the kernels. One thread and no GPU: the committed digits are those of one x86-64 thread.
ENVIRONMENT = {
    "PYTHONHASHSEED": "0",
    "TQDM_DISABLE": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "NORMLAB_DEVICE": "cpu",
    "NORMLAB_LARGER": "0",
    "NORMLAB_STRICT_SHOW": "1",  # claims.show refuses a value close to a rounding border
}

KERNELSPEC = {"display_name": "Python 3", "language": "python", "name": "python3"}
LANGUAGE_INFO = {
    "file_extension": ".py",
    "mimetype": "text/x-python",
    "name": "python",
    "pygments_lexer": "ipython3",
}
VOLATILE_CELL_METADATA = ("execution", "ExecuteTime", "collapsed", "scrolled", "outputId", "jupyter")
# What JupyterLab hides of a cell with one of the book's tags.
FOLDED = {
    "hide-input": ("source_hidden",),
    "hide-output": ("outputs_hidden",),
    "hide-cell": ("outputs_hidden", "source_hidden"),
}
CELL_TIMEOUT_SECONDS = 300


def notebooks(root: Path) -> list[Path]:
    """All notebooks of the repository at ``root``: the chapters, then the drills."""
    return [*sorted((root / "notebooks").glob("*.ipynb")), *sorted((root / "notebooks" / "drills").glob("*.ipynb"))]


def joined_streams(outputs: list) -> list:
    """``outputs`` with neighbouring pieces of one stream put together: where a stream is cut is chance."""
    joined = []
    for output in outputs:
        last = joined[-1] if joined else None
        if last and output["output_type"] == "stream" == last["output_type"] and output["name"] == last["name"]:
            last["text"] += output["text"]
        else:
            joined.append(output)
    return joined


def clean(notebook) -> None:
    """Drop from ``notebook`` what a later run or another machine would write differently."""
    notebook.metadata.pop("widgets", None)
    notebook.metadata["kernelspec"] = dict(KERNELSPEC)
    notebook.metadata["language_info"] = dict(LANGUAGE_INFO)
    for cell in notebook.cells:
        for key in VOLATILE_CELL_METADATA:
            cell.metadata.pop(key, None)
        if cell.cell_type == "code":
            cell.outputs = joined_streams(cell.outputs)
            hidden = {part: True for tag in cell.metadata.get("tags", ()) for part in FOLDED.get(tag, ())}
            if hidden:
                cell.metadata["jupyter"] = hidden


def execute(path: Path, run: bool = True) -> bool:
    """Run the notebook at ``path`` and store it whole; True if the file changed. A cell that raises stops the run.

    Raises:
        OSError: it cannot be stored, which is tried before the run, or was edited while it ran.
    """
    import nbformat

    whole.check_writable(path)
    before = path.read_text(encoding="utf-8")
    notebook = nbformat.reads(before, as_version=4)
    if run:
        run_cells(notebook, path.parent)
    clean(notebook)
    after = nbformat.writes(notebook) + "\n"
    if after != before:
        if path.read_text(encoding="utf-8") != before:
            raise OSError(f"{path.name} was edited while it ran, and is left as it is: run it again")
        whole.write(path, after.encode())
    return after != before


def run_cells(notebook, folder: Path, kernel: str = "python3") -> None:
    """Run all cells in a new kernel in ``folder``."""
    from nbclient import NotebookClient
    from nbclient.exceptions import DeadKernelError

    client = NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT_SECONDS,
        kernel_name=kernel,
        record_timing=False,
        extra_arguments=["--IPKernelApp.log_level=ERROR"],
        resources={"metadata": {"path": str(folder)}},
    )
    try:
        client.execute()
    except (DeadKernelError, AssertionError):  # nbclient, once it has ended the kernel for a signal
        raise InterruptedError("its kernel was stopped before the last cell") from None


def main(arguments: list[str]) -> None:
    run = "--no-run" not in arguments
    names = [name for name in arguments if name != "--no-run"]
    os.environ.update(ENVIRONMENT)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    paths = [Path(name).resolve() for name in names] or notebooks(ROOT)
    with whole.told():
        for path in paths:
            try:
                changed = execute(path, run)
            except InterruptedError as problem:
                raise InterruptedError(f"{path.name} is as it was: {problem}") from None
            print(f"{path.name}: {'stored' if changed else 'nothing changed'}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
