"""Write the digest of each image beside its tag: ``make pin-images``, for a clone that somebody deploys from.

A tag can be moved, a digest cannot. Digests come from the registries of the images, which ``docker`` or
``skopeo`` asks; without an answer nothing is written. The project itself keeps exact tags.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# The tag of an image, and its digest if it was pinned before.
COMPOSE = re.compile(r"^(?P<head> *image: )(?P<name>[^\s@]+:[^\s@]+)(?:@sha256:[0-9a-f]{64})?$", re.MULTILINE)
DOCKERFILE = re.compile(r"^(?P<head>ARG PYTHON=)(?P<name>[^\s@]+)(?:@sha256:[0-9a-f]{64})?$", re.MULTILINE)
FILES = (("docker-compose.yml", COMPOSE, "{}"), ("Dockerfile", DOCKERFILE, "python:{}"))
OWN = "farmd:"
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def main(root):
    """Pin all images, or none of them."""
    asked = {}
    texts = []
    for name, pattern, form in FILES:
        text = (root / name).read_text()
        for found in pattern.finditer(text):
            image = form.format(found["name"])
            if not image.startswith(OWN) and image not in asked:
                asked[image] = digest(image)

        def pinned(found, form=form):
            known = asked.get(form.format(found["name"]))
            return found["head"] + found["name"] + (f"@{known}" if known else "")

        texts.append((root / name, pattern.sub(pinned, text)))
    for path, text in texts:
        path.write_text(text)
    for image, known in asked.items():
        sys.stdout.write(f"{image} {known}\n")


def digest(image):
    """What the registry says of an image: the digest of the list of all its platforms."""
    docker = ["docker", "buildx", "imagetools", "inspect", "--format", "{{.Manifest.Digest}}", image]
    skopeo = ["skopeo", "inspect", "--format", "{{.Digest}}", f"docker://docker.io/{image}"]
    programs = [command for command in (docker, skopeo) if shutil.which(command[0])]
    if not programs:
        stop("pin-images needs docker (with buildx) or skopeo, to ask the registries of the images")
    done = subprocess.run(programs[0], capture_output=True, text=True, check=False)
    found = DIGEST.search(done.stdout)
    if done.returncode != 0 or found is None:
        said = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no digest"]
        stop(f"{programs[0][0]}: {image}: {said[0]}; nothing was written")
    return found[0]


def stop(line):
    """End with one line."""
    sys.stderr.write("make: " + line + "\n")
    raise SystemExit(1)


if __name__ == "__main__":
    main(ROOT)
