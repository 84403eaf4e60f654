"""A hub on 127.0.0.1 that answers as huggingface_hub expects: model info, tree, files with ranges."""

import hashlib
import json
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "c0ffee" + "0" * 34


class FakeHub:
    """`files`: name to bytes; those whose name ends in .safetensors or tokenizer.json are large files with a SHA-256.

    Knobs: `status` answers everything with it; `cut` breaks each transfer after that many bytes; `tamper` alters
    payloads; `ranges` False ignores Range; `redirect` sends large files from another host, as the hub does; `silent_s`
    waits before answers. `requests` lists (method, path, range header), `tokens` (path, authorization header).
    """

    def __init__(self, files: dict[str, bytes], name: str = "owner/name", commit: str = COMMIT):
        self.files, self.name, self.commit = files, name, commit
        self.requests: list[tuple[str, str, str | None]] = []
        self.status: int | None = None
        self.error_code: str | None = None
        self.cut: int | None = None
        self.tamper = False
        self.ranges = True
        self.redirect = False
        self.silent_s = 0.0
        self.tokens: list[tuple[str, str | None]] = []
        self.on_transfer = None

    def __enter__(self) -> "FakeHub":
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                hub._answer(self, body=True)

            def do_HEAD(self):
                hub._answer(self, body=False)

            def log_message(self, *args):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *exc) -> None:
        self.server.shutdown()
        self.server.server_close()

    def transfers(self, name: str) -> list[str | None]:
        """Range headers of the GET requests for a file."""
        return [ranged for method, path, ranged in self.requests if method == "GET" and path.endswith(f"/{name}")]

    def _entry(self, name: str) -> dict:
        data = self.files[name]
        blob = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        entry = {"size": len(data), "oid": blob, "blobId": blob}
        if name.endswith((".safetensors", "tokenizer.json", ".bin")):
            sha256 = hashlib.sha256(data).hexdigest()
            entry["lfs"] = {"size": len(data), "oid": sha256, "sha256": sha256, "pointerSize": 134}
        return entry

    def _answer(self, request, body: bool) -> None:
        path = unquote(urlsplit(request.path).path)
        ranged = request.headers.get("Range")
        self.requests.append((request.command, path, ranged))
        self.tokens.append((path, request.headers.get("Authorization")))
        time.sleep(self.silent_s)
        if self.status is not None:
            return self._send(
                request, self.status, b"{}", {"X-Error-Code": self.error_code} if self.error_code else {}, body
            )
        if re.fullmatch(rf"/api/models/{self.name}(/revision/[^/]+)?", path):
            revision = path.partition("/revision/")[2]
            if revision not in ("", "main", "v1", self.commit):
                return self._send(request, 404, b"{}", {"X-Error-Code": "RevisionNotFound"}, body)
            siblings = [{"rfilename": name, **self._entry(name)} for name in self.files]
            info = {
                "id": self.name,
                "modelId": self.name,
                "sha": self.commit,
                "siblings": siblings,
                "tags": [],
                "private": False,
            }
            return self._send(request, 200, json.dumps(info).encode(), {}, body)
        if path == f"/api/models/{self.name}/tree/{self.commit}":
            tree = [{"type": "file", "path": name, **self._entry(name)} for name in self.files]
            return self._send(request, 200, json.dumps(tree).encode(), {}, body)
        match = re.fullmatch(rf"/{self.name}/resolve/[^/]+/(.+)|/cdn/(.+)", path)
        if match and match[2]:
            return self._send_file(request, match[2], ranged, body)
        if not match or match[1] not in self.files:
            return self._send(request, 404, b"{}", {"X-Error-Code": "RepoNotFound"}, body)
        self._send_file(request, match[1], ranged, body)

    def _send_file(self, request, name: str, ranged: str | None, body: bool) -> None:
        data, entry = self.files[name], self._entry(name)
        headers = {"X-Repo-Commit": self.commit, "ETag": f'"{entry["oid"]}"', "Accept-Ranges": "bytes"}
        if "lfs" in entry:
            headers |= {"X-Linked-Etag": f'"{entry["lfs"]["sha256"]}"', "X-Linked-Size": str(len(data))}
            if self.redirect and not request.path.startswith("/cdn/"):
                headers["Location"] = f"{self.url.replace('127.0.0.1', 'localhost')}/cdn/{name}"
                return self._send(request, 302, b"", headers, body)
        if self.tamper and body and "lfs" in entry:
            data = data[:-1] + bytes([data[-1] ^ 1])
        status = 200
        if ranged and self.ranges:
            start = int(re.fullmatch(r"bytes=(\d+)-", ranged)[1])
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
            status, data = 206, data[start:]
        if body and self.on_transfer:
            self.on_transfer(name)
        self._send(request, status, data, headers, body, self.cut if "lfs" in entry else None)

    @staticmethod
    def _send(request, status: int, data: bytes, headers: dict[str, str], body: bool, cut: int | None = None) -> None:
        request.send_response(status)
        for key, value in {"Content-Type": "application/json", "Content-Length": str(len(data)), **headers}.items():
            request.send_header(key, value)
        request.end_headers()
        if not body:
            return
        request.wfile.write(data if cut is None else data[:cut])
        if cut is not None and cut < len(data):
            request.close_connection = True
