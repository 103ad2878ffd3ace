"""The bucket: put, get, delete and list over S3, and the meaning of each failure.

botocore is the reference client of the S3 API. It runs in the archive's threads and is imported
only here, by a daemon that has an archive. Each call makes one attempt with a time limit; the
archive decides about retries, since a server that is slow for one call is slow for all.
"""

import concurrent.futures as futures
import hashlib
import importlib
import io
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from offstage.bindings.errors import BadInput, Missing
from offstage.bindings.private import check_private
from offstage.dpu.config.options import Archive

__all__ = ["NAMES_MAX", "Bucket", "Failed"]

REFUSED = {
    "AccessDenied": "the credentials may not use it",
    "AllAccessDisabled": "the credentials may not use it",
    "InvalidAccessKeyId": "the credentials are refused: no such access key",
    "SignatureDoesNotMatch": "the credentials are refused: the secret key is another",
    "ExpiredToken": "the credentials are refused: they have expired",
    "InvalidToken": "the credentials are refused",
    "403": "the credentials are refused",
    "NoSuchBucket": "there is no such bucket",
    "InvalidBucketName": "no server has a bucket of that name",
    "404": "there is no such bucket",
}
FULL = (
    "QuotaExceeded",
    "InsufficientStorage",
    "InsufficientCapacity",
    "XMinioStorageFull",
    "EntityTooLarge",
    "507",
    "413",
)
MISSING = ("NoSuchKey", "NoSuchVersion")
HEAD_MISSING = "there is no such bucket"  # a HEAD has no body: 404 is all it says
LISTING = (b"<ListBucketResult", b"<Error")
MORE = re.compile(rb"IsTruncated>(true|false)</")  # botocore takes all but the first for false
KEYS_MAX = 1000  # of one page of a listing
PAGES_MAX = 1 << 16  # of one listing
NAMES_MAX = 1 << 20  # of ours that one listing may hold in memory
BODY_BYTES_MAX = 8 << 20  # of any answer that is no object: 1000 names of 1 KiB, escaped
DEADLINE_TIMEOUTS = 4  # time limit of a call, in `archive.timeout`s, however slowly bytes arrive
LOOK_S = 0.1
SAID_MAX = 120  # characters of what is no S3: it may be a whole page
FIX = {
    "the": "correct archive.key_file, or the credentials that botocore finds",
    "there": "make it, or correct archive.bucket",
    "no": "correct archive.bucket",
    "it": "correct archive.endpoint, or what stands between",
}


class Failed(Exception):
    """One call failed. `kind`: missing (no such object), full, refused (credentials, bucket, no S3
    at all), gone (no answer in time, or not all of it), error (whatever else the server said)."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class Bucket:
    """One bucket, for any number of threads."""

    def __init__(self, options: Archive, where: str) -> None:
        """Read the credentials; nothing is sent. BadInput, Missing: botocore, or a key file."""
        self._options, self._where = options, where
        try:
            session = importlib.import_module("botocore.session")
            config = importlib.import_module("botocore.config")
            self._errors = importlib.import_module("botocore.exceptions")
            self._parsers = importlib.import_module("botocore.parsers")
        except ImportError:
            raise Missing("s3", "botocore is not installed", "archive.bucket") from None
        timeout_s = options.timeout_ns / 1e9
        chosen = config.Config(
            connect_timeout=timeout_s,
            read_timeout=timeout_s,
            retries={"total_max_attempts": 1},
            max_pool_connections=options.connections + 1,
            s3={"addressing_style": "path" if options.endpoint else "auto"},
            # Not every server knows S3's newer sums; ours is in the object.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        access, secret = _credentials(options.key_file)
        try:
            self._client: Any = session.get_session().create_client(
                "s3",
                endpoint_url=options.endpoint or None,
                region_name=options.region,
                aws_access_key_id=access,
                aws_secret_access_key=secret,
                config=chosen,
            )
        except (ValueError, self._errors.BotoCoreError) as error:
            raise BadInput(
                f"is no S3 endpoint ({error})",
                options.endpoint or where,
                "write archive.endpoint as http://host:port",
            ) from None
        self._client.meta.events.register_first("before-parse.*", _check_page)
        self._deadline_s = DEADLINE_TIMEOUTS * timeout_s
        self._stopping = threading.Event()
        self._size_max = threading.local()
        session = self._client._endpoint.http_session
        self._send, session.send = session.send, self._sent

    def stop(self) -> None:
        """Calls under way end as `gone`, and later ones too."""
        self._stopping.set()

    def check(self) -> str:
        """One listing. Empty, or why nothing answers now; BadInput for what waiting cannot fix:
        credentials that are refused, a bucket that is not there, something that is no S3."""
        try:
            self._page(MaxKeys=1)
        except Failed as failed:
            if failed.kind == "refused":
                raise BadInput(
                    str(failed),
                    f"{self._where} {self._options.bucket!r}",
                    FIX[str(failed).split()[0]],
                ) from None
            return str(failed)
        return ""

    def put(self, name: str, data: bytes) -> None:
        """Store an object, whole or not at all. Failed."""
        reply = self._call("put_object", Key=name, Body=data, ContentLength=len(data))
        if not reply.get("ETag"):
            raise Failed("refused", "it answers no S3: it took an object and names no tag of it")

    def get(self, name: str, size_max: int) -> bytes:
        """An object's bytes. Failed, also where there are more than `size_max`."""
        reply = self._call("get_object", size_max=size_max, Key=name)
        data = bytes(reply["Body"].read())
        size = int(reply.get("ContentLength", len(data)))
        if len(data) != size:  # a read with a limit does not see that the connection was cut
            raise Failed("gone", f"{len(data)} B of {size} came")
        return data

    def holds(self, name: str, data: bytes | None) -> bool:
        """Whether a HEAD says that the object is these bytes, by length and tag, or, None, that
        there is none: another server may have answered the GET. Failed: no answer."""
        try:
            reply = self._call("head_object", Key=name)
        except Failed as failed:
            if failed.kind == "missing" or str(failed) == HEAD_MISSING:
                return data is None
            raise
        if data is None:
            return False
        tag = str(reply.get("ETag", "")).strip('"')
        md5 = hashlib.md5(data, usedforsecurity=False).hexdigest()
        return (tag, reply.get("ContentLength")) == (md5, len(data))

    def delete(self, name: str) -> None:
        """It is not there afterwards, as a read says too. Failed."""
        try:
            reply = self._call("delete_object", Key=name)
            if reply["ResponseMetadata"]["HTTPStatusCode"] != 204:
                raise Failed("refused", "it answers no S3: a delete has an answer with a page")
        except Failed as failed:
            if failed.kind != "missing":
                raise
        try:  # a HEAD says 404 of a bucket that is not there, too; a read names what is missing
            self._call("get_object", Key=name, Range="bytes=0-0")
        except Failed as failed:
            if failed.kind == "missing":
                return
            raise
        raise Failed("error", "it still has an object that it said it deleted")

    def names(self, prefix: str) -> Iterator[str]:
        """The names that begin so, a page at a time. Failed: also where some may be lacking."""
        more: dict[str, str] = {}
        seen: set[int] = set()
        for _ in range(PAGES_MAX):
            page = self._page(Prefix=prefix, **more)
            for one in page.get("Contents", ()):
                name = str(one["Key"])
                if not name.startswith(prefix):
                    raise Failed("error", "its listing has names that were not asked for")
                yield name
            if not page["IsTruncated"]:
                return
            token = str(page.get("NextContinuationToken") or "")
            if not token or hash(token) in seen:
                raise Failed("error", "its listing has more, and names no way on")
            seen.add(hash(token))
            more = {"ContinuationToken": token}
        raise Failed("error", f"its listing has more than {PAGES_MAX:,} pages")

    def _page(self, **arguments: Any) -> Any:
        """Of a listing. Any XML parses as an empty one: each must say whether more follows, and
        agree with itself."""
        page = self._call("list_objects_v2", **{"MaxKeys": KEYS_MAX, **arguments})
        count = len(page.get("Contents", ()))
        if count > KEYS_MAX:
            raise Failed("error", f"more than {KEYS_MAX} names on one page of its listing")
        if "IsTruncated" not in page:
            raise Failed("refused", "it answers no S3: its listing is none")
        if page.get("KeyCount", count) != count:
            raise Failed("error", f"{count} of {page['KeyCount']} names on a page of its listing")
        if page.get("NextContinuationToken") and not page["IsTruncated"]:
            raise Failed("error", "its listing ends and names a way on")
        return page

    def _call(self, method: str, *, size_max: int = BODY_BYTES_MAX, **arguments: Any) -> Any:
        """One call with a bounded reply, within the deadline: in a separate thread, which is
        abandoned at the deadline, or when the archive closes."""
        done: futures.Future[Any] = futures.Future()

        def work() -> None:
            self._size_max.value = size_max, time.monotonic() + self._deadline_s
            try:
                done.set_result(self._called(method, **arguments))
            except BaseException as error:
                done.set_exception(error)

        threading.Thread(target=work, name="ofs-archive-call", daemon=True).start()
        until_s = time.monotonic() + self._deadline_s
        while not self._stopping.is_set() and time.monotonic() < until_s:
            if futures.wait([done], LOOK_S).done:
                return done.result()
        raise Failed(
            "gone", "no whole answer in time" if not self._stopping.is_set() else "the archive ends"
        )

    def _sent(self, request: Any) -> Any:
        """As the client's own, with all of the body, which has bounds in size and in time."""
        request.stream_output = True
        response = self._send(request)
        size_max, until_s = self._size_max.value
        data = _body(response.raw, size_max, until_s)
        response.raw, response._content = io.BytesIO(data), data
        return response

    def _called(self, method: str, **arguments: Any) -> Any:
        try:
            return getattr(self._client, method)(Bucket=self._options.bucket, **arguments)
        except self._errors.ClientError as error:
            raise _said(error) from None
        except self._errors.NoCredentialsError:
            raise Failed("refused", "the credentials are missing") from None
        except self._errors.ParamValidationError as error:
            text = " ".join(str(error).split())
            raise Failed("refused", f"no server has a bucket of that name ({text})") from None
        except self._parsers.ResponseParserError as error:
            text = " ".join(str(error).split())[:SAID_MAX]
            raise Failed("refused", f"it answers no S3: {text}") from None
        except (OSError, self._errors.BotoCoreError) as error:
            raise Failed("gone", " ".join(str(error).split())) from None


def _body(raw: Any, size_max: int, until_s: float) -> bytes:
    read: Callable[[int], bytes] = getattr(raw, "read1", raw.read)
    data = bytearray()
    try:
        while some := read(1 << 16):
            data += some
            if len(data) > size_max:
                raise Failed("error", f"more than {size_max} B")
            if time.monotonic() > until_s:
                raise Failed("gone", "no whole answer in time")
        return bytes(data)
    except Failed:
        raise
    except Exception as error:  # urllib3's own classes, which botocore does not name
        raise Failed("gone", str(error)) from None
    finally:
        raw.close()


def _check_page(operation_model: Any, response_dict: dict[str, Any], **_: Any) -> None:
    """Failed for a page of something else. botocore's own handler, which comes after this one,
    makes an error of the server of what does not parse, as of a listing that was cut; but that
    begins as one."""
    if operation_model.name != "ListObjectsV2" or response_dict["status_code"] != 200:
        return
    begin = bytes(response_dict["body"][:1024])
    body = bytes(response_dict["body"])
    odd = b"<!DOCTYPE" in body or b"<!ENTITY" in body
    odd |= b"IsTruncated" in body and not MORE.search(body)
    if odd or not any(one in begin for one in LISTING):
        text = " ".join(begin.decode(errors="replace").split())[:SAID_MAX]
        raise Failed("refused", f"it answers no S3: {text}")


def _said(error: Any) -> Failed:
    """What the server said."""
    said = error.response.get("Error", {})
    code = str(said.get("Code", ""))
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if code in MISSING:
        return Failed("missing", code)
    if code in FULL or status in (413, 507):
        return Failed("full", f"it is full ({code})")
    if code in REFUSED:
        return Failed("refused", REFUSED[code])
    return Failed("gone" if status in (502, 503, 504) else "error", f"it answers {status} {code}")


def _credentials(key_file: str) -> tuple[str | None, str | None]:
    """Access key and secret key, a line each; without a file whatever botocore finds."""
    if not key_file:
        return None, None
    path = Path(key_file)
    try:
        check_private(path)
        lines = path.read_text(encoding="utf-8", errors="replace").split()
    except OSError as error:
        raise BadInput(
            f"the S3 keys cannot be read ({error.strerror})", key_file, "correct archive.key_file"
        ) from None
    if len(lines) != 2:
        raise BadInput(
            f"has {len(lines)} words, and not two",
            key_file,
            "write the access key on one line, the secret key on the next",
        )
    return lines[0], lines[1]
