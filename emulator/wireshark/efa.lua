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
local QUEUES = { "send queue", "receive queue" }

-- Values and fields of the device's interface: offset and length in bytes, then mask and shift of bits. Their check,
-- emulator/hw/tests/tables.rs, prints what has to be here.
local OpType = { [0] = "SEND", "RDMA_READ", "RDMA_WRITE", "FAST_REG", "FAST_INV" }
local CompStatus = {
    [0] = "OK", "FLUSHED", "LOCAL_ERROR_QP_INTERNAL_ERROR", "LOCAL_ERROR_UNSUPPORTED_OP", "LOCAL_ERROR_INVALID_AH",
    "LOCAL_ERROR_INVALID_LKEY", "LOCAL_ERROR_BAD_LENGTH", "REMOTE_ERROR_BAD_ADDRESS", "REMOTE_ERROR_ABORT",
    "REMOTE_ERROR_BAD_DEST_QPN", "REMOTE_ERROR_RNR", "REMOTE_ERROR_BAD_LENGTH", "REMOTE_ERROR_BAD_STATUS",
    "LOCAL_ERROR_UNRESP_REMOTE", "REMOTE_ERROR_UNKNOWN_PEER", "LOCAL_ERROR_UNREACH_REMOTE",
    [18] = "REMOTE_ERROR_FEATURE_MISMATCH",
}
local TxMetaDesc = {
    req_id = { 0, 2 }, op_type = { 2, 1, 0xf, 0 }, has_imm = { 2, 1, 0x10, 4 }, inline_msg = { 2, 1, 0x20, 5 },
    meta_extension = { 2, 1, 0x40, 6 }, meta_desc = { 2, 1, 0x80, 7 }, phase = { 3, 1, 0x1, 0 },
    first = { 3, 1, 0x4, 2 }, last = { 3, 1, 0x8, 3 }, comp_req = { 3, 1, 0x10, 4 }, dest_qp_num = { 4, 2 },
    length = { 6, 2 }, immediate_data = { 8, 4 }, ah = { 12, 2 }, processing_hints = { 14, 1, 0x3, 0 },
    qkey = { 16, 4 }, req_id_ex = { 26, 6 },
}
local TxBufDesc = { length = { 0, 4 }, lkey = { 4, 4 }, buf_addr = { 8, 8 } }
local RemoteMemAddr = { length = { 0, 4 }, rkey = { 4, 4 }, buf_addr = { 8, 8 } }
local FastMrInvReq = { lkey = { 0, 4 } }
local RxDesc = {
    buf_addr = { 0, 8 }, req_id = { 8, 2 }, length = { 10, 2 }, lkey = { 12, 3 }, first = { 15, 1, 0x40, 6 },
    last = { 15, 1, 0x80, 7 },
}
local Cdesc = {
    req_id = { 0, 2 }, status = { 2, 1 }, phase = { 3, 1, 0x1, 0 }, q_type = { 3, 1, 0x6, 1 },
    has_imm = { 3, 1, 0x8, 3 }, op_type = { 3, 1, 0x70, 4 }, unsolicited = { 3, 1, 0x80, 7 }, qp_num = { 4, 2 },
    length = { 6, 2 }, ah = { 8, 2 }, src_qp_num = { 10, 2 }, imm = { 12, 4 }, extension = { 16, 16 },
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
    status = ProtoField.uint8("efa.status", "Status", base.DEC, CompStatus),
    request = ProtoField.uint64("efa.request", "Number of the read"),
    qp = ProtoField.uint16("efa.qp", "Queue pair"),
    cq = ProtoField.uint16("efa.cq", "Completion queue"),
    event = ProtoField.string("efa.event", "Event"),
    -- Fields of descriptors and completions, named as in Linux's efa_io_defs.h.
    req_id = ProtoField.uint16("efa.req_id", "Request id"),
    operation = ProtoField.uint8("efa.op_type", "Operation", base.DEC, OpType, TxMetaDesc.op_type[3]),
    wr_immediate = ProtoField.bool("efa.has_imm", "Has immediate data", 8, nil, TxMetaDesc.has_imm[3]),
    inline = ProtoField.bool("efa.inline_msg", "Inline data", 8, nil, TxMetaDesc.inline_msg[3]),
    phase = ProtoField.bool("efa.phase", "Phase", 8, nil, TxMetaDesc.phase[3]),
    comp_req = ProtoField.bool("efa.comp_req", "Completion wanted", 8, nil, TxMetaDesc.comp_req[3]),
    dest_qp = ProtoField.uint16("efa.dest_qp_num", "Queue pair of the peer"),
    count = ProtoField.uint16("efa.length", "Bytes of inline data, or buffers"),
    ah = ProtoField.uint16("efa.ah", "Address handle"),
    lkey = ProtoField.uint32("efa.lkey", "Local key", base.HEX),
    buffer = ProtoField.uint64("efa.buf_addr", "Buffer address", base.HEX),
    buffer_length = ProtoField.uint32("efa.buf_length", "Buffer length"),
    queue = ProtoField.uint8("efa.q_type", "Queue", base.DEC, QUEUES, Cdesc.q_type[3]),
    comp_immediate = ProtoField.bool("efa.comp.has_imm", "Has immediate data", 8, nil, Cdesc.has_imm[3]),
    comp_operation = ProtoField.uint8("efa.comp.op_type", "Operation", base.DEC, OpType, Cdesc.op_type[3]),
    unsolicited = ProtoField.bool("efa.unsolicited", "Without a receive work request", 8, nil, Cdesc.unsolicited[3]),
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

-- Returns the bytes with a field of the device's interface.
local function at(bytes, field)
    return bytes(field[1], field[2])
end

-- Returns the value of such a field.
local function value(bytes, field)
    local number = at(bytes, field):le_uint()
    return field[3] and bit.rshift(bit.band(number, field[3]), field[4]) or number
end

-- Shows such a field.
local function show(tree, proto, bytes, field)
    tree:add_le(proto, at(bytes, field))
end

local function status(tree, buffer, offset)
    local number = buffer(offset, 1):uint()
    local item = tree:add_le(f.status, buffer(offset, 1))
    if number ~= 0 then
        item:add_proto_expert_info(failed)
    end
    return name(CompStatus, number)
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

-- Shows a buffer of a send work request, or memory of the peer; returns its length.
local function send_buffer(tree, buffer, offset, key)
    local bytes = part(buffer, offset, 16)
    if not bytes then
        return 0
    end
    local layout = key == f.rkey and RemoteMemAddr or TxBufDesc
    local item = tree:add(bytes, key == f.rkey and "Memory of the peer" or "Buffer")
    show(item, f.buffer_length, bytes, layout.length)
    show(item, key, bytes, layout.rkey or layout.lkey)
    show(item, f.buffer, bytes, layout.buf_addr)
    return value(bytes, layout.length)
end

local function send(tree, buffer)
    local qp = buffer(8, 2):le_uint()
    tree:add_le(f.qp, buffer(8, 2))
    local wr = part(buffer, 16, 32)
    if not wr then
        return "queue pair " .. qp
    end
    local of = TxMetaDesc
    local operation, count = value(wr, of.op_type), value(wr, of.length)
    show(tree, f.req_id, wr, of.req_id)
    show(tree, f.operation, wr, of.op_type)
    show(tree, f.wr_immediate, wr, of.has_imm)
    show(tree, f.inline, wr, of.inline_msg)
    show(tree, f.phase, wr, of.phase)
    show(tree, f.comp_req, wr, of.comp_req)
    local what = string.format("queue pair %d, %s, id %d", qp, name(OpType, operation), value(wr, of.req_id))
    if operation == 3 or operation == 4 then
        local body = part(buffer, 48, 4)
        if body then
            show(tree, f.lkey, body, FastMrInvReq.lkey)
        end
        return what
    end
    show(tree, f.dest_qp, wr, of.dest_qp_num)
    show(tree, f.count, wr, of.length)
    if value(wr, of.has_imm) ~= 0 then
        show(tree, f.immediate, wr, of.immediate_data)
    end
    show(tree, f.ah, wr, of.ah)
    show(tree, f.qkey, wr, of.qkey)
    local next = 48
    if operation == 1 or operation == 2 then
        send_buffer(tree, buffer, next, f.rkey)
        next = next + 16
    end
    what = string.format("%s, to %d", what, value(wr, of.dest_qp_num))
    if value(wr, of.inline_msg) ~= 0 then
        local shown = math.min(count, math.max(buffer:len() - next, 0))
        if shown > 0 then
            tree:add(f.payload, buffer(next, shown))
        end
        return string.format("%s, %d bytes inline", what, count)
    end
    local total = 0
    for _ = 1, math.min(count, 2) do
        total = total + send_buffer(tree, buffer, next, f.lkey)
        next = next + 16
    end
    return string.format("%s, %d bytes", what, total)
end

local function receive(tree, buffer)
    tree:add_le(f.qp, buffer(8, 2))
    local total, id = 0, nil
    for offset = 16, buffer:len() - 16, 16 do
        local bytes = buffer(offset, 16)
        local item = tree:add(bytes, "Buffer")
        show(item, f.buffer, bytes, RxDesc.buf_addr)
        show(item, f.req_id, bytes, RxDesc.req_id)
        show(item, f.buffer_length, bytes, RxDesc.length)
        show(item, f.lkey, bytes, RxDesc.lkey)
        total = total + value(bytes, RxDesc.length)
        id = id or value(bytes, RxDesc.req_id)
    end
    return string.format("queue pair %d, id %s, %d bytes", buffer(8, 2):le_uint(), id or "?", total)
end

local function completion(tree, buffer)
    tree:add_le(f.cq, buffer(8, 2))
    local entry = part(buffer, 16, 16)
    if not entry then
        return "completion queue " .. buffer(8, 2):le_uint()
    end
    show(tree, f.req_id, entry, Cdesc.req_id)
    local how = status(tree, entry, Cdesc.status[1])
    show(tree, f.phase, entry, Cdesc.phase)
    show(tree, f.queue, entry, Cdesc.q_type)
    show(tree, f.comp_operation, entry, Cdesc.op_type)
    show(tree, f.qp, entry, Cdesc.qp_num)
    local queue = value(entry, Cdesc.q_type)
    if queue == 2 then
        show(tree, f.comp_immediate, entry, Cdesc.has_imm)
        show(tree, f.unsolicited, entry, Cdesc.unsolicited)
        show(tree, f.received, entry, Cdesc.length)
        show(tree, f.ah, entry, Cdesc.ah)
        show(tree, f.source_qp, entry, Cdesc.src_qp_num)
        if value(entry, Cdesc.has_imm) ~= 0 then
            show(tree, f.immediate, entry, Cdesc.imm)
        end
    end
    return string.format(
        "queue %d, %s of queue pair %d, %s, id %d: %s", buffer(8, 2):le_uint(), name(QUEUES, queue), value(entry, Cdesc.qp_num),
        name(OpType, value(entry, Cdesc.op_type)), value(entry, Cdesc.req_id), how
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
