"""What is removed from the text of a bundle, and how long that takes."""

import time

import pytest

from workbench.redaction import REMOVED, Redactor


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("MY_API_KEY=abcdef123456", "abcdef123456"),
        ("password: 'tr0ub4dor'", "tr0ub4dor"),
        ('{"client_secret": "xyz"}', "xyz"),
        ("Authorization: Bearer aaaa.bbbb", "aaaa.bbbb"),
        ("git clone https://me:hunter2@host/x", "hunter2"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----", "MIIE"),
        ("hf token=hf_0123456789abc", "hf_0123456789abc"),
        ("MIIE\nabcd=\n-----END PRIVATE KEY-----", "abcd"),
        ('password="correct horse', "correct"),
        ("redis://:hunter2@host", "hunter2"),
        ("https://ghp_x@host/path", "ghp_x"),
        ("postgres://me:hunter/2@host", "hunter"),
        ("amqp://me:hunt@er2@host/x", "er2"),
        ("train.py --password hunter --n 3", "hunter"),
        ("['train.py', '--api-key', 'hunter']", "hunter"),
        ("Authorization: token hunter2", "hunter2"),
        ('Authorization: Digest username="x", response="62f"', "62f"),
        ("curl -u me:hunter2 https://host", "hunter2"),
        ("curl --user=me:hunter2 https://host", "hunter2"),
    ],
)
def test_secrets_are_recognized_without_knowing_them(text, secret):
    assert secret in text
    cleaned = Redactor().clean(text)
    assert secret not in cleaned
    assert REMOVED in cleaned


@pytest.mark.parametrize(
    "text",
    [
        "tokenizer = AutoTokenizer.from_pretrained(name)",
        "max_tokens=512000000 and key = keys[0]",
        "rank 1 waits in 'allreduce.layer1.weight' for 3.25 s",
        "see https://host:8888/path and a:b@c",
        "https://host/owner/name@v1 http://host:80/name@v2",
        "train.py --tokenizer gpt2 --max-tokens 512 --token",
        "lines\nof text:\nwithout a key",
    ],
)
def test_other_text_is_kept(text):
    assert Redactor().clean(text) == text


def test_values_of_an_environment_are_removed_wherever_they_are(monkeypatch, tmp_path):
    """Also those of the hosts, and values that begin like a path; paths are kept."""
    key = tmp_path / "id_key"
    key.touch()
    monkeypatch.setenv("OWN_PASSWORD", "/x+y/z==")
    monkeypatch.setenv("SSH_KEY", str(key))
    redactor = Redactor([{"THEIR_SECRET": "correct horse"}], ["controller"])
    text = f"/x+y/z== correct horse controller {key}"
    assert redactor.clean(text) == f"{REMOVED} {REMOVED} {REMOVED} {key}"
    assert redactor.clean_json({"a": ["correct horse"], "auth_token": "t"}) == {
        "a": [REMOVED],
        "auth_token": REMOVED,
    }


@pytest.mark.parametrize(
    "unit",
    [
        "a-",
        "token-",
        "token=",
        "token='",
        "--token ",
        "://:",
        "://a:b",
        "://a@",
        "-u=",
        "Authorization: ",
        "-----BEGIN PRIVATE KEY",
        "-----END PRIVATE KEY-----\n",
        "AAAA\n",
        "1.5,2,",
    ],
)
def test_the_time_grows_linearly(unit):
    """Eight times the text takes about eight times as long, and not sixty-four times."""
    redactor = Redactor()

    def cpu_s(size):
        text = unit * (size // len(unit))
        begin = time.process_time()
        redactor.clean(text)
        return time.process_time() - begin

    assert cpu_s(400_000) < 32 * max(min(cpu_s(50_000) for _ in range(3)), 0.01)
