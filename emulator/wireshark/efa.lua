-- SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

-- Dissects efa-emu's captures in Wireshark and tshark: records of the link type USER0, which
-- Documentation/emulator-observe.md describes.

local efa = Proto("efa", "Elastic Fabric Adapter, emulated")

local KINDS = {
    "Data", "Acknowledgement", "Datagram", "Send work request", "Receive work request", "Completion", "Event",
}
local DATA, ACK, DATAGRAM, SEND, RECEIVE, COMPLETION, EVENT = 1, 2, 3, 4, 5, 6, 7
local SUBJECTS = { [0] = "unknown", "send", "RDMA write", "RDMA read", "RDMA read response", "RDMA read failure" }
local VERDICTS = { "delivered", "receiver not ready", "failed" }
local OPERATIONS = { [0] = "SEND", "RDMA_READ", "RDMA_WRITE", "FAST_REG", "FAST_INV" }
local QUEUES = { "send queue", "receive queue" }
local STATUSES = {
    [0] = "OK", "FLUSHED", "QP_INTERNAL_ERROR", "UNSUPPORTED_OP", "INVALID_AH", "INVALID_LKEY", "BAD_LENGTH (local)",
    "BAD_ADDRESS", "ABORT", "BAD_DEST_QPN", "RNR", "BAD_LENGTH (remote)", "BAD_STATUS", "UNRESP_REMOTE",
    "UNKNOWN_PEER", "UNREACH_REMOTE", [18] = "FEATURE_MISMATCH",
}

local f = {
    version = ProtoField.uint8("efa.version", "Version of the format"),
    kind = ProtoField.uint8("efa.type", "Type", base.DEC, KINDS),
    header = ProtoField.uint16("efa.header_length", "Header length"),
    length = ProtoField.uint32("efa.payload_length", "Payload length"),
    payload = ProtoField.bytes("efa.payload", "Payload"),
    source = ProtoField.ipv6("efa.src", "Source"),
    destination = ProtoField.ipv6("efa.dst", "Destination"),
    path = ProtoField.uint16("efa.path", "Path"),
    source_qp = ProtoField.uint16("efa.src_qp", "Source queue pair"),
    destination_qp = ProtoField.uint16("efa.dst_qp", "Destination queue pair"),
    flags = ProtoField.uint8("efa.flags", "Flags", base.HEX),
    has_message = ProtoField.bool("efa.flags.message", "Message is known", 8, nil, 0x01),
    has_immediate = ProtoField.bool("efa.flags.immediate", "Immediate data", 8, nil, 0x02),
    again = ProtoField.bool("efa.flags.retransmission", "Retransmission", 8, nil, 0x04),
    subject = ProtoField.uint8("efa.subject", "Subject", base.DEC, SUBJECTS),
    verdict = ProtoField.uint8("efa.verdict", "Verdict", base.DEC, VERDICTS),
    connection = ProtoField.uint64("efa.connection", "Connection"),
    psn = ProtoField.uint64("efa.psn", "Packet sequence number"),
    floor = ProtoField.uint64("efa.floor", "All concluded below"),
    message = ProtoField.uint64("efa.message", "Message"),
    offset = ProtoField.uint32("efa.offset", "Offset in the message"),
    qkey = ProtoField.uint32("efa.qkey", "Q_Key", base.HEX),
    immediate = ProtoField.uint32("efa.immediate", "Immediate data", base.HEX),
    rkey = ProtoField.uint32("efa.rkey", "Remote key", base.HEX),
    address = ProtoField.uint64("efa.address", "Remote address", base.HEX),
    message_length = ProtoField.uint32("efa.message_length", "Message length"),
    status = ProtoField.uint8("efa.status", "Status", base.DEC, STATUSES),
    request = ProtoField.uint64("efa.request", "Number of the read"),
    qp = ProtoField.uint16("efa.qp", "Queue pair"),
    cq = ProtoField.uint16("efa.cq", "Completion queue"),
    event = ProtoField.string("efa.event", "Event"),
    -- Fields of descriptors and completions, named as in Linux's efa_io_defs.h.
    req_id = ProtoField.uint16("efa.req_id", "Request id"),
    operation = ProtoField.uint8("efa.op_type", "Operation", base.DEC, OPERATIONS, 0x0f),
    wr_immediate = ProtoField.bool("efa.has_imm", "Has immediate data", 8, nil, 0x10),
    inline = ProtoField.bool("efa.inline_msg", "Inline data", 8, nil, 0x20),
    phase = ProtoField.bool("efa.phase", "Phase", 8, nil, 0x01),
    comp_req = ProtoField.bool("efa.comp_req", "Completion wanted", 8, nil, 0x10),
    dest_qp = ProtoField.uint16("efa.dest_qp_num", "Queue pair of the peer"),
    count = ProtoField.uint16("efa.length", "Bytes of inline data, or buffers"),
    ah = ProtoField.uint16("efa.ah", "Address handle"),
    lkey = ProtoField.uint32("efa.lkey", "Local key", base.HEX),
    buffer = ProtoField.uint64("efa.buf_addr", "Buffer address", base.HEX),
    buffer_length = ProtoField.uint32("efa.buf_length", "Buffer length"),
    queue = ProtoField.uint8("efa.q_type", "Queue", base.DEC, QUEUES, 0x06),
    comp_immediate = ProtoField.bool("efa.comp.has_imm", "Has immediate data", 8, nil, 0x08),
    comp_operation = ProtoField.uint8("efa.comp.op_type", "Operation", base.DEC, OPERATIONS, 0x70),
    unsolicited = ProtoField.bool("efa.unsolicited", "Without a receive work request", 8, nil, 0x80),
    received = ProtoField.uint16("efa.comp.length", "Length (for RDMA its lower half)"),
}
efa.fields = f

local failed = ProtoExpert.new("efa.failed", "It has failed", expert.group.RESPONSE_CODE, expert.severity.WARN)
local again = ProtoExpert.new("efa.again", "Retransmission", expert.group.SEQUENCE, expert.severity.NOTE)
local unknown = ProtoExpert.new("efa.unknown", "Unknown format", expert.group.UNDECODED, expert.severity.ERROR)
efa.experts = { failed, again, unknown }

local function name(names, number)
    return names[number] or tostring(number)
end

-- Returns a part of the buffer, or nil if the buffer ends before it.
local function part(buffer, offset, length)
    if offset + length <= buffer:len() then
        return buffer(offset, length)
    end
end

local function status(tree, buffer, offset)
    local number = buffer(offset, 1):uint()
    local item = tree:add_le(f.status, buffer(offset, 1))
    if number ~= 0 then
        item:add_proto_expert_info(failed)
    end
    return name(STATUSES, number)
end

-- Shows the fields of all packets. Returns the flags, and the byte of the subject or the verdict.
local function packet(tree, buffer, pinfo)
    pinfo.cols.src = tostring(buffer(8, 16):ipv6())
    pinfo.cols.dst = tostring(buffer(24, 16):ipv6())
    tree:add(f.source, buffer(8, 16))
    tree:add(f.destination, buffer(24, 16))
    tree:add_le(f.path, buffer(40, 2))
    local flags = buffer(46, 1)
    if bit.band(flags:uint(), 1) ~= 0 then
        tree:add_le(f.source_qp, buffer(42, 2))
        tree:add_le(f.destination_qp, buffer(44, 2))
    end
    local item = tree:add_le(f.flags, flags)
    item:add_le(f.has_message, flags)
    item:add_le(f.has_immediate, flags)
    if bit.band(flags:uint(), 4) ~= 0 then
        item:add_le(f.again, flags):add_proto_expert_info(again)
    end
    return flags:uint(), buffer(47, 1)
end

local function data(tree, buffer, pinfo)
    local flags, subject = packet(tree, buffer, pinfo)
    tree:add_le(f.connection, buffer(48, 8))
    tree:add_le(f.psn, buffer(56, 8))
    tree:add_le(f.floor, buffer(64, 8))
    tree:add_le(f.message, buffer(72, 8))
    tree:add_le(f.offset, buffer(80, 4))
    local what = string.format(
        "connection %s, psn %s, message %s, offset %d, %d bytes", buffer(48, 8):le_uint64(), buffer(56, 8):le_uint64(),
        buffer(72, 8):le_uint64(), buffer(80, 4):le_uint(), buffer(4, 4):le_uint()
    )
    if bit.band(flags, 1) == 0 then
        return what
    end
    tree:add_le(f.subject, subject)
    tree:add_le(f.qkey, buffer(84, 4))
    if bit.band(flags, 2) ~= 0 then
        tree:add_le(f.immediate, buffer(88, 4))
    end
    local number = subject:uint()
    if number == 2 or number == 3 then
        tree:add_le(f.rkey, buffer(92, 4))
        tree:add_le(f.address, buffer(96, 8))
        tree:add_le(f.message_length, buffer(104, 4))
    end
    if number == 5 then
        what = status(tree, buffer, 108) .. ", " .. what
    end
    if number >= 3 then
        tree:add_le(f.request, buffer(112, 8))
    end
    local qps = string.format("%d > %d", buffer(42, 2):le_uint(), buffer(44, 2):le_uint())
    local prefix = bit.band(flags, 4) ~= 0 and "again: " or ""
    return prefix .. name(SUBJECTS, number) .. " " .. qps .. ", " .. what
end

local function acknowledgement(tree, buffer, pinfo)
    local _, verdict = packet(tree, buffer, pinfo)
    tree:add_le(f.verdict, verdict)
    tree:add_le(f.connection, buffer(48, 8))
    tree:add_le(f.psn, buffer(56, 8))
    local what = name(VERDICTS, verdict:uint())
    if verdict:uint() == 3 then
        what = what .. " (" .. status(tree, buffer, 64) .. ")"
    end
    return string.format(
        "connection %s, psn %s %s", buffer(48, 8):le_uint64(), buffer(56, 8):le_uint64(), what
    )
end

local function datagram(tree, buffer, pinfo)
    local flags = packet(tree, buffer, pinfo)
    tree:add_le(f.qkey, buffer(64, 4))
    if bit.band(flags, 2) ~= 0 then
        tree:add_le(f.immediate, buffer(68, 4))
    end
    return string.format(
        "%d > %d, %d bytes", buffer(42, 2):le_uint(), buffer(44, 2):le_uint(), buffer(4, 4):le_uint()
    )
end

-- Shows a buffer of a send work request, or memory of the peer.
local function send_buffer(tree, buffer, offset, key)
    local bytes = part(buffer, offset, 16)
    if bytes then
        local item = tree:add(bytes, key == f.rkey and "Memory of the peer" or "Buffer")
        item:add_le(f.buffer_length, bytes(0, 4))
        item:add_le(key, bytes(4, 4))
        item:add_le(f.buffer, bytes(8, 8))
    end
end

local function send(tree, buffer)
    local qp = buffer(8, 2):le_uint()
    tree:add_le(f.qp, buffer(8, 2))
    local wr = part(buffer, 16, 32)
    if not wr then
        return "queue pair " .. qp
    end
    local control, count = wr(2, 1), wr(6, 2):le_uint()
    local operation = bit.band(control:uint(), 0x0f)
    local inline = bit.band(control:uint(), 0x20) ~= 0
    tree:add_le(f.req_id, wr(0, 2))
    tree:add_le(f.operation, control)
    tree:add_le(f.wr_immediate, control)
    tree:add_le(f.inline, control)
    tree:add_le(f.phase, wr(3, 1))
    tree:add_le(f.comp_req, wr(3, 1))
    local what = string.format("queue pair %d, %s, id %d", qp, name(OPERATIONS, operation), wr(0, 2):le_uint())
    if operation == 3 or operation == 4 then
        local key = part(buffer, 48, 4)
        if key then
            tree:add_le(f.lkey, key)
        end
        return what
    end
    tree:add_le(f.dest_qp, wr(4, 2))
    tree:add_le(f.count, wr(6, 2))
    if bit.band(control:uint(), 0x10) ~= 0 then
        tree:add_le(f.immediate, wr(8, 4))
    end
    tree:add_le(f.ah, wr(12, 2))
    tree:add_le(f.qkey, wr(16, 4))
    local next = 48
    if operation == 1 or operation == 2 then
        send_buffer(tree, buffer, next, f.rkey)
        next = next + 16
    end
    if inline then
        local shown = math.min(count, math.max(buffer:len() - next, 0))
        if shown > 0 then
            tree:add(f.payload, buffer(next, shown))
        end
        return string.format("%s, to %d, %d bytes inline", what, wr(4, 2):le_uint(), count)
    end
    local total = 0
    for _ = 1, math.min(count, 2) do
        send_buffer(tree, buffer, next, f.lkey)
        local length = part(buffer, next, 4)
        total = total + (length and length:le_uint() or 0)
        next = next + 16
    end
    return string.format("%s, to %d, %d bytes", what, wr(4, 2):le_uint(), total)
end

local function receive(tree, buffer)
    tree:add_le(f.qp, buffer(8, 2))
    local total, id = 0, nil
    for offset = 16, buffer:len() - 16, 16 do
        local bytes = buffer(offset, 16)
        local item = tree:add(bytes, "Buffer")
        item:add_le(f.buffer, bytes(0, 8))
        item:add_le(f.req_id, bytes(8, 2))
        item:add_le(f.buffer_length, bytes(10, 2))
        item:add_le(f.lkey, bytes(12, 3))
        total = total + bytes(10, 2):le_uint()
        id = id or bytes(8, 2):le_uint()
    end
    return string.format("queue pair %d, id %s, %d bytes", buffer(8, 2):le_uint(), id or "?", total)
end

local function completion(tree, buffer)
    tree:add_le(f.cq, buffer(8, 2))
    local entry = part(buffer, 16, 16)
    if not entry then
        return "completion queue " .. buffer(8, 2):le_uint()
    end
    local flags = entry(3, 1)
    tree:add_le(f.req_id, entry(0, 2))
    local how = status(tree, buffer, 18)
    tree:add_le(f.phase, flags)
    tree:add_le(f.queue, flags)
    tree:add_le(f.comp_operation, flags)
    tree:add_le(f.qp, entry(4, 2))
    local queue = bit.band(bit.rshift(flags:uint(), 1), 3)
    if queue == 2 then
        tree:add_le(f.comp_immediate, flags)
        tree:add_le(f.unsolicited, flags)
        tree:add_le(f.received, entry(6, 2))
        tree:add_le(f.ah, entry(8, 2))
        tree:add_le(f.source_qp, entry(10, 2))
        if bit.band(flags:uint(), 8) ~= 0 then
            tree:add_le(f.immediate, entry(12, 4))
        end
    end
    local operation = bit.band(bit.rshift(flags:uint(), 4), 7)
    return string.format(
        "queue %d, %s of queue pair %d, %s, id %d: %s", buffer(8, 2):le_uint(), name(QUEUES, queue), entry(4, 2):le_uint(),
        name(OPERATIONS, operation), entry(0, 2):le_uint(), how
    )
end

local function event(tree, buffer)
    local text = buffer(16)
    tree:add(f.event, text)
    return text:string()
end

local SHOW = { data, acknowledgement, datagram, send, receive, completion, event }
-- Minimum length of each header in bytes.
local HEADERS = { 120, 72, 72, 16, 16, 16, 16 }

function efa.dissector(buffer, pinfo, root)
    pinfo.cols.protocol = "EFA"
    local tree = root:add(efa, buffer())
    local kind = buffer:len() >= 8 and buffer(0, 1):uint() == 1 and buffer(1, 1):uint() or 0
    local header = kind > 0 and buffer(2, 2):le_uint() or 0
    -- Later versions of efa-emu may append fields to a header.
    if not SHOW[kind] or header < HEADERS[kind] or buffer:len() < header then
        tree:add_proto_expert_info(unknown)
        return
    end
    tree:add_le(f.version, buffer(0, 1))
    tree:add_le(f.kind, buffer(1, 1))
    tree:add_le(f.header, buffer(2, 2))
    tree:add_le(f.length, buffer(4, 4))
    local what = SHOW[kind](tree, buffer, pinfo)
    if kind <= DATAGRAM and buffer:len() > header then
        tree:add(f.payload, buffer(header))
    end
    tree:append_text(", " .. KINDS[kind])
    pinfo.cols.info = KINDS[kind] .. ": " .. what
end

DissectorTable.get("wtap_encap"):add(wtap.USER0, efa)
