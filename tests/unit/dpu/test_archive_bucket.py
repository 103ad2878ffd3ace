"""Is an answer that cannot be parsed a failed call like any other?"""

from types import SimpleNamespace
from typing import Any

import pytest

from offstage.dpu.archive.s3 import Bucket, Failed
from offstage.dpu.config.options import Archive


def test_an_answer_that_is_no_xml_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("botocore")
    from botocore.parsers import ResponseParserError

    def html(**_: object) -> None:
        raise ResponseParserError("invalid XML received:\n" + "<html>" * 100)

    bucket = Bucket(Archive(bucket="b", endpoint="http://127.0.0.1:9"), "")
    client: Any = SimpleNamespace(delete_object=html, put_object=html)
    monkeypatch.setattr(bucket, "_client", client)
    with pytest.raises(Failed, match="no S3") as failed:
        bucket.delete("a")
    assert failed.value.kind == "refused" and len(str(failed.value)) < 200
