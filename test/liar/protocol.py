# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What adverb's processes say to each other, written down a second time: the liar has nothing of adverb's own
but what stands in preload/link/wire.h, proof.h, slots.h and preload/transfer/messages.h."""

import collections
import hashlib
import hmac
import struct

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

MAGIC, VERSION = 0x42564441, 2
HEADER = struct.Struct("<IHHI")
HEADER_FIELDS = ("magic", "version", "type", "length")


class Layout:
    """A payload: its fields in order, as bytes and back"""

    def __init__(self, name, number, /, **fields):
        self.name, self.number, self.fields = name, number, fields
        self.form = struct.Struct("<" + "".join(fields.values()))
        self.values = collections.namedtuple(name, fields)
        self.size = self.form.size

    def pack(self, **values):
        empty = {name: bytes(int(kind[:-1])) if kind.endswith("s") else 0 for name, kind in self.fields.items()}
        assert values.keys() <= empty.keys(), values
        return self.form.pack(*(empty | values).values())

    def unpack(self, payload):
        return self.values(*self.form.unpack(payload))

    def offset(self, field):
        before = list(self.fields)[:list(self.fields).index(field)]
        return struct.calcsize("<" + "".join(self.fields[name] for name in before))


ID, SHARE = "16s", "32s"
VERSIONS = {"oldest": "H", "newest": "H", "capabilities": "I"}
LAYOUTS = [
    Layout("hello", 1, process=ID, nonce=ID, dgid=ID, dqpn="I", attempt="I", **VERSIONS),
    Layout("hello_ack", 2, process=ID, nonce=ID, mac=SHARE, answer="I", zero="I", **VERSIONS, ticket=ID),
    Layout("auth", 3, mac=SHARE),
    Layout("bind", 4, sgid=ID, dgid=ID, sqpn="I", dqpn="I", slid="H", dlid="H", patience="I", handle="Q"),
    Layout("bind_ack", 5, handle="Q", remote_handle="Q", answer="I", proof="I"),
    Layout("companion", 6, handle="Q", remote_handle="Q", nonce=ID, qpn="I", psn="I", credits="H", protocol="B",
           protocol_version="B", message_max="I", timeout="I", zero="I"),
    Layout("companion_ack", 7, handle="Q", nonce=ID, qpn="I", psn="I", credits="H", protocol="B",
           protocol_version="B", message_max="I", answer="I", zero="I"),
    Layout("unbind", 8, handle="Q"),
    Layout("probe", 9, sgid=ID, dgid=ID, sqpn="I", dqpn="I", slid="H", dlid="H", patience="I", handle="Q"),
    Layout("resume", 10, ticket=ID),
    Layout("resume_ack", 11, answer="I", zero="I"),
    Layout("banner", 12, **VERSIONS),
    Layout("claim", 13, handle="Q", key="I", zero="I"),
    Layout("slot", 14, handle="Q", answer="I", kind="I", index="I", rkey="I", share=SHARE),
    Layout("prove", 15, handle="Q", companion_qpn="I", zero="I", share=SHARE, identity=SHARE, mac=SHARE),
    Layout("packet_companion", 17, handle="Q", remote_handle="Q", nonce=ID, qpn="I", psn="I", credits="H", protocol="B",
           protocol_version="B", message_max="I", timeout="I", zero="I", address="96s"),
    Layout("packet_companion_ack", 18, handle="Q", nonce=ID, qpn="I", psn="I", credits="H", protocol="B",
           protocol_version="B", message_max="I", answer="I", zero="I", address="96s"),
    Layout("prove_ack", 16, handle="Q", answer="I", zero="I", mac=SHARE),
]
BY_NAME = {layout.name: layout for layout in LAYOUTS}
BY_NUMBER = {layout.number: layout for layout in LAYOUTS}

(OK, NO_SUCH_QP, MISMATCH, NOT_READY, REFUSED, WRONG_VERSION, NO_RESOURCES, NO_SUCH_PROTOCOL, NOT_THERE,
 REAL_KEY) = range(10)


def frame(name, version=VERSION, **values):
    payload = BY_NAME[name].pack(**values)
    return HEADER.pack(MAGIC, version, BY_NAME[name].number, len(payload)) + payload


# Slots: a page for each kind, at addresses that no program has.
SLOT_BASE, SLOT_PAGE, SLOT_BYTES = 0x4ADB_0000_0000_0000, 4096, 64
SLOT_WRITE, SLOT_READ, SLOT_ATOMIC = 1, 2, 4


def slot_address(kind, index):
    return SLOT_BASE + (kind - 1) * SLOT_PAGE + index * SLOT_BYTES


class KeyPair:
    def __init__(self):
        self.secret = X25519PrivateKey.generate()
        self.open = self.secret.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)

    def common(self, theirs):
        return self.secret.exchange(X25519PublicKey.from_public_bytes(theirs))


TRANSCRIPT = struct.Struct("<16s16s16s16s56sQIIII56s48s32s32s32s8s")
SALT = b"adverb: this queue pair is mine, 2"


def mac_of(key, data):
    return hmac.new(key, data, hashlib.sha256).digest()


def know_key(key, speaker, initiator_nonce, owner_nonce):
    return mac_of(key, speaker + initiator_nonce + owner_nonce)


def proof(commons, key, transcript):
    """The initiator's MAC and the owner's: HKDF (RFC 5869) with SHA-256, one block for each"""
    extracted = mac_of(SALT, b"".join(commons) + key)
    return tuple(mac_of(extracted, transcript + who + b"\1") for who in (b"initiator", b"owner"))


# What travels over a companion.
REQUEST = Layout("request", 0, kind="B", flags="B", version="B", zero="B", run="I", target="Q", source="Q",
                 request="Q", address="Q", total_address="Q", total="Q", receive="Q", key="I", length="I")
REPLY = Layout("reply", 0, kind="B", status="B", zero="H", run="I", source="Q", request="Q", offset="Q", grant="Q",
               grant_start="Q", grant_bytes="Q", rkey="I", length="I")
NOTICE = Layout("notice", 0, kind="B", zero="B", count="H", number="I")
WRITE, READ, QUERY, GRANT, RELEASE = 1, 2, 3, 4, 5
NOTICE_KIND = 128
DONE, NAK, NOT_VIRTUAL, HALTED, FAULT, UNSUPPORTED = range(6)
LAST_PART = 1
TRANSFER = 0  # the protocol of its channels
TRANSFER_VERSION = 2


def request(kind, target, source, address, length, key, payload=b"", **other):
    values = {"kind": kind, "flags": LAST_PART, "run": 1, "target": target, "source": source, "address": address,
              "total_address": address, "total": length, "key": key, "length": length}
    return REQUEST.pack(**(values | other)) + payload
