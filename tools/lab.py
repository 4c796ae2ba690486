"""JupyterLab on the course's notebooks: `make lab`.

    python tools/lab.py [OPTION OF JUPYTERLAB …]

JupyterLab notes in a notebook which kernel ran it and what the reader unfolded: a notebook that was only opened
would count as changed. Here it is given what it would note, and what it saves is stored as tools/execute.py does.
"""

import os
import sys
from pathlib import Path

import nbformat
from execute import clean
from ipykernel.ipkernel import IPythonKernel
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_server.services.contents.largefilemanager import AsyncLargeFileManager
from jupyterlab.labapp import LabApp
from nbformat.sign import NotebookNotary

ROOT = Path(__file__).resolve().parent.parent


class NotebookFiles(AsyncLargeFileManager):
    """The files as JupyterLab reads and writes them."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self.register_pre_save_hook(as_stored)

    async def get(self, *arguments, **options):
        model = await super().get(*arguments, **options)
        if is_ours(model):
            model["content"].metadata.update(noted_by_jupyterlab())
        return model


def is_ours(model: dict) -> bool:
    """Whether ``model`` is a notebook for the kernel that all chapters run in."""
    if model["type"] != "notebook" or model.get("content") is None:
        return False
    return model["content"]["metadata"].get("kernelspec", {}).get("name") == "python3"


def noted_by_jupyterlab() -> dict:
    """What JupyterLab writes into the metadata of a notebook as soon as a kernel runs."""
    display_name = KernelSpecManager().get_kernel_spec("python3").display_name
    kernelspec = {"display_name": display_name, "language": "python", "name": "python3"}
    return {"kernelspec": kernelspec, "language_info": dict(IPythonKernel.language_info)}


def as_stored(model: dict, **_) -> None:
    """What JupyterLab is about to save, in the form of tools/execute.py."""
    if is_ours(model):
        notebook = nbformat.from_dict(model["content"])
        clean(notebook)
        model["content"] = notebook


def trust(notebooks: list[Path]) -> None:
    """Let JupyterLab show the figures and sliders of ``notebooks`` before they are run again.

    They come with the package that runs here anyway.
    """
    notary = NotebookNotary()
    for path in notebooks:
        notary.sign(nbformat.read(path, as_version=4))


if __name__ == "__main__":
    trust(sorted((ROOT / "notebooks").glob("*.ipynb")))
    os.chdir(ROOT)  # the whole repository, so that links from chapters to other pages lead somewhere
    settings = ["--LabApp.default_url=/lab/tree/notebooks", "--ServerApp.contents_manager_class=lab.NotebookFiles"]
    LabApp.launch_instance([*settings, *sys.argv[1:]])
