"""What deploy/ holds is checked without installing it: schemas, paths, and commands that there are."""

from __future__ import annotations

import re
import warnings
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest
import yaml

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of what it imports
    import kubernetes_validate

ROOT = Path(__file__).parents[1]
MANIFEST = ROOT / "deploy" / "kubernetes" / "devices.yaml"
DOCUMENTS = list(yaml.safe_load_all(MANIFEST.read_text()))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document["kind"])
def test_manifests_are_what_kubernetes_takes(document: dict[str, Any]) -> None:
    kubernetes_validate.validate(document, "1.33", strict=True)


def test_a_wrong_manifest_would_be_found() -> None:
    (wrong,) = [d for d in yaml.safe_load_all(MANIFEST.read_text()) if d["kind"] == "StatefulSet"]
    wrong["spec"]["replicaz"] = 3
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, "1.33", strict=True)


def test_every_device_of_the_manifest_has_keys_and_is_called() -> None:
    (devices,) = [d for d in DOCUMENTS if d["kind"] == "StatefulSet"]
    names = [f"devices-{n}" for n in range(devices["spec"]["replicas"])]
    pod = devices["spec"]["template"]["spec"]
    args = pod["containers"][0]["args"]
    assert [f"--connect={name}.devices:7447" for name in names] == [a for a in args if "--connect" in a]
    (keys,) = [volume["projected"] for volume in pod["volumes"] if volume["name"] == "keys"]
    paths = {item["path"] for source in keys["sources"] for item in source["secret"]["items"]}
    assert paths == {f"{name}/{file}" for name in names for file in ("ca.pem", "device.pem", "device.key")}
    assert keys["defaultMode"] == 0o400


def test_the_service_stops_politely_and_starts_again_after_a_crash_only() -> None:
    unit = ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(ROOT / "deploy" / "manyhands@.service")
    service = unit["Service"]
    assert service["KillSignal"] == "SIGINT"
    assert service["Restart"] == "on-failure"
    assert service["RestartPreventExitStatus"].split() == ["2", "130"]
    assert service["ExecStart"].startswith("/opt/manyhands/bin/manyhands join ")


def test_the_container_copies_what_there_is() -> None:
    text = (ROOT / "deploy" / "Containerfile").read_text()
    sources = re.findall(r"^COPY (?!--from)(.+) \./?\S*$", text, re.MULTILINE)
    for path in " ".join(sources).split():
        assert (ROOT / path).exists(), path
    assert "STOPSIGNAL SIGINT" in text
