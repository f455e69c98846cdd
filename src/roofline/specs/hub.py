"""Fetches the configs of a Hugging Face repository. Needs the extra `roofline[hub]`; weights are never downloaded."""

from __future__ import annotations

import re
from pathlib import Path

from roofline.errors import SpecError

CONFIG, QUANTISATION = "config.json", "hf_quant_config.json"


def is_hub_id(text: str) -> bool:
    """Whether `text` is written like a repository: owner/name."""
    return re.fullmatch(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", text) is not None


def hub_config(repo: str) -> tuple[Path, Path | None]:
    """The local copies of `config.json` and, where the repository has one, `hf_quant_config.json`.

    Errors:   SpecError that says what to do: install the extra, log in, check the name, or work offline with a folder
    """
    config = _download(repo, CONFIG)
    if config is None:
        raise SpecError(
            f"'{repo}' on the Hub has no config.json; of a GGUF repository, download a file and give its path"
        )
    return config, _download(repo, QUANTISATION)


def _download(repo: str, name: str) -> Path | None:
    """The local copy of one file; None where the repository does not have it."""
    try:
        from huggingface_hub import hf_hub_download, utils
    except ImportError:
        raise SpecError(
            f"'{repo}' looks like a Hub id; reading it needs the package 'huggingface_hub'; install it with: "
            "pip install 'roofline[hub]'. Or give the path of a config.json"
        ) from None
    try:
        return Path(hf_hub_download(repo_id=repo, filename=name))
    except utils.GatedRepoError:
        raise SpecError(
            f"'{repo}' is gated: accept its licence on the Hub and log in ('hf auth login'), or give a config.json"
        ) from None
    except utils.RepositoryNotFoundError:
        raise SpecError(
            f"there is no repository '{repo}' on the Hub, or it is private and you are not logged in"
        ) from None
    except utils.LocalEntryNotFoundError:  # offline, and not in the cache: before its parent EntryNotFoundError
        if name == QUANTISATION:
            return None
        raise SpecError(
            f"the Hub cannot be reached and '{repo}' is not in its cache; give a local config.json"
        ) from None
    except utils.EntryNotFoundError:
        return None
    except (
        utils.HfHubHTTPError,
        OSError,
        ValueError,
    ) as error:  # OSError: no network; ValueError: not a repository name
        text = " ".join(str(error).split())[:160]
        raise SpecError(f"'{repo}' cannot be read from the Hub: {text}. Or give a local config.json") from None
