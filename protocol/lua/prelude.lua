-- Shared by every script: KEYS[1] is the agent's namespace G, and every other key is G .. ':…', in the
-- same Cluster slot by its hash tag (pipeline.py says why there is a KEYS[2], which never exists). A room's hash is
-- loaded once into a table, changed there, and written back by save(), so that a script reads as a decision and costs
-- one HSET and one HDEL.
local G = KEYS[1]
local call = redis.call

-- As in records.py: of each message, and of all that an agent has here. What is newer is not for this greenroom.
local VERSION, LAYOUT = 1, 1
local TOO_NEW_MS = 500 -- after how long a room with such a message is looked at again, by whichever worker
local FORGET_S = 60 -- how long a room's hash outlives its work, for requests that are sent again
local CLAIMS_BYTES = 512 -- of the claims of a ready entry that are remembered, about a dozen

-- What is kept where no worker has said anything else (retain.lua): entries (about), and seconds.
local KEEP = { outbox = 1000, outbox_s = 604800, events = 10000, control = 10000, receipts_s = 86400, dead = 100000 }
local FIELDS_MAX = 64 -- names and values of a message that are kept with its dead letter

local READY, GROUP = G .. ':ready', 'supervisors'
local PROCESSING, HELD, ROOMS = G .. ':processing', G .. ':held', G .. ':rooms'

local function room_key(room) return G .. ':room:' .. room end
local function messages_key(room) return room_key(room) .. ':messages' end
local function outbox_key(room) return room_key(room) .. ':outbox' end

-- Relays: of each the rooms that have outputs it has not handed over, with the first of these. What is kept for them has
-- names that no room or relay can have.
local RELAYS, RELAYS_SEEN = G .. ':relays', G .. ':relays:seen'
local function lease_key(relay) return G .. ':relay:' .. relay end
local function undelivered_key(relay) return G .. ':undelivered:' .. relay end
local function aborted_key(room) return G .. ':aborted:' .. room end

-- Time: the server's clock only. ---------------------------------------------------------------------

local time = call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)

-- Days since 1970-01-01 <-> civil date, by the era arithmetic of the proleptic Gregorian calendar.
local function iso(ms)
  local days = math.floor(ms / 86400000)
  local rest = ms - days * 86400000
  local z = days + 719468
  local era = math.floor(z / 146097)
  local doe = z - era * 146097
  local yoe = math.floor((doe - math.floor(doe / 1460) + math.floor(doe / 36524) - math.floor(doe / 146096)) / 365)
  local doy = doe - (365 * yoe + math.floor(yoe / 4) - math.floor(yoe / 100))
  local mp = math.floor((5 * doy + 2) / 153)
  local day = doy - math.floor((153 * mp + 2) / 5) + 1
  local month = mp < 10 and mp + 3 or mp - 9
  local year = yoe + era * 400 + (month <= 2 and 1 or 0)
  return string.format('%04d-%02d-%02dT%02d:%02d:%02d.%03dZ', year, month, day, math.floor(rest / 3600000),
    math.floor(rest / 60000) % 60, math.floor(rest / 1000) % 60, rest % 1000)
end

local function ms_of(text)
  local year, month, day, hour, minute, second, milli = text:match('(%d+)-(%d+)-(%d+)T(%d+):(%d+):(%d+)%.(%d+)Z')
  year, month = tonumber(year), tonumber(month)
  if not month then return 0 end
  if month <= 2 then year = year - 1 end
  local era = math.floor(year / 400)
  local yoe = year - era * 400
  local doy = math.floor((153 * (month > 2 and month - 3 or month + 9) + 2) / 5) + day - 1
  local doe = yoe * 365 + math.floor(yoe / 4) - math.floor(yoe / 100) + doy
  return (era * 146097 + doe - 719468) * 86400000 + hour * 3600000 + minute * 60000 + second * 1000 + milli
end

local now = iso(now_ms)

-- The whole number that a text says; nil when it is none, there is no text, or Lua and Redis would not agree on so great a one.
local function whole(text) return text and #text <= 16 and text:match('^%d+$') and tonumber(text) or nil end

-- The logical clock: source of message ids and tickets, so that both are ordered and never reused. It is never behind the
-- server's time in microseconds: a Redis that has lost its last writes (a crash, a fail-over) must not give out again what a
-- worker or a client still has from them. Exact up to 2^53, which is the year 2255.
local now_us = time[1] * 1000000 + time[2]
local function tick()
  local clock = tonumber(call('HGET', G, 'clock') or nil) or 0
  if not (clock < 9007199254740992) then clock = 0 end -- no script wrote that
  local value = math.max(clock + 1, now_us)
  call('HSET', G, 'clock', string.format('%d', value))
  return value
end

-- What G says for nearly every script, read once: the mode, and what is to be kept.
local about_agent = nil
local function of_agent()
  if not about_agent then
    local v = call('HMGET', G, 'mode', 'keep_outbox', 'keep_outbox_s', 'keep_events')
    about_agent = { mode = v[1] or nil, outbox = whole(v[2]) or KEEP.outbox, outbox_s = whole(v[3]) or KEEP.outbox_s,
      events = whole(v[4]) or KEEP.events }
  end
  return about_agent
end
local function agent_mode() return of_agent().mode end

-- What few scripts ask for; nil: for ever.
local function kept(what) return whole(call('HGET', G, 'keep_' .. what)) or KEEP[what] end

-- Hand-written control entries are handled once and in order, whoever reads them: a cursor in G says how far. Answers
-- whether this one was handled before, and moves the cursor.
local function handled(entry)
  local cursor = call('HGET', G, 'control_cursor') or ''
  local ms, seq = entry:match('(%d+)-(%d+)')
  local cursor_ms, cursor_seq = cursor:match('(%d+)-(%d+)')
  if cursor_ms then
    ms, cursor_ms = tonumber(ms), tonumber(cursor_ms)
    if ms < cursor_ms or (ms == cursor_ms and tonumber(seq) <= tonumber(cursor_seq)) then return true end
  end
  call('HSET', G, 'control_cursor', entry)
  return false
end

-- What happened, for people and readers. ------------------------------------------------------------

local function event(kind, ...) call('XADD', G .. ':events', 'MAXLEN', '~', of_agent().events, '*', 'event', kind, ...) end

-- Of a message, or a cycle of it, with the worker that has the room at this instant, if one has.
local happened = {}
local function cycle_event(kind, h, id, ticket, ...)
  happened[#happened + 1] = kind
  if h.owner then event(kind, 'room', h.room, 'message', id, 'ticket', ticket, 'worker', h.owner, ...)
  else event(kind, 'room', h.room, 'message', id, 'ticket', ticket, ...) end
end

-- The answer to a worker, and at its end the names of the events that this request has made, if any, which it counts. A request
-- that is sent again has made none.
local function told(answer)
  if #happened > 0 then answer[#answer + 1] = table.concat(happened, ' ') end
  return answer
end

-- The names of the registered relays: read once, by a script that sends.
local registered = nil
local function relays()
  registered = registered or call('HKEYS', RELAYS)
  return registered
end

-- Notes an output for each relay, and wakes those that had none of this room left. An aborted cycle is remembered while some
-- relay may still have chunks of it before it.
local function note_undelivered(room, id, kind, ticket)
  for _, relay in ipairs(relays()) do
    local undelivered = undelivered_key(relay)
    if call('HSETNX', undelivered, room, id) == 1 then call('PUBLISH', undelivered, room)
    elseif kind == 'aborted' then
      call('SADD', aborted_key(room), ticket)
    end
  end
end

-- A relay has nothing of this room left. Once none has, the outbox is trimmed, and expires: output() sees to neither while
-- there are relays.
local function let_go(relay, room)
  call('HDEL', undelivered_key(relay), room)
  for _, other in ipairs(relays()) do
    if call('HEXISTS', undelivered_key(other), room) == 1 then return end
  end
  call('XTRIM', outbox_key(room), 'MAXLEN', '~', of_agent().outbox, 'LIMIT', 0)
  call('EXPIRE', outbox_key(room), of_agent().outbox_s)
  call('UNLINK', aborted_key(room))
end

-- Does something for one room of many: one whose record is not what scripts write must not keep the others from their turn.
-- Answers what f answers, or nothing.
local function safely(room, f, ...)
  local fine, first, second = pcall(f, ...)
  if fine then return first, second end
  event('room.unreadable', 'room', room, 'error', tostring(type(first) == 'table' and first.err or first))
end

-- Appends one entry to the room's outbox. The publication is only a hint that wakes readers.
local function output(room, kind, message, ticket, seq, body, ...)
  local box, id = outbox_key(room), nil
  if #relays() == 0 then
    id = call('XADD', box, 'MAXLEN', '~', of_agent().outbox, '*', 'kind', kind, 'message', message,
      'ticket', ticket, 'seq', seq, 'body', body, ...)
    call('EXPIRE', box, of_agent().outbox_s)
  else
    id = call('XADD', box, '*', 'kind', kind, 'message', message, 'ticket', ticket, 'seq', seq, 'body', body, ...)
    call('PERSIST', box)
    note_undelivered(room, id, kind, ticket)
  end
  call('PUBLISH', box, id)
end

-- The room. -----------------------------------------------------------------------------------------

local FIELDS = { 'phase', 'mode', 'owner', 'ready', 'processing', 'attempt', 'claimed_at', 'cycle', 'seq', 'shield',
  'abort', 'deferred', 'abort_cid', 'retry_at', 'last_error', 'settled', 'request', 'answer', 'claims' }
local PHASE, MODE, CYCLE = 1, 2, 8 -- where in FIELDS, and so in h.was, which holds what Redis has (false: nothing)

-- Spelled out: a table made at its full size at once costs a fifth of one that grows field by field.
local function load(room)
  local v = call('HMGET', room_key(room), 'phase', 'mode', 'owner', 'ready', 'processing', 'attempt', 'claimed_at', 'cycle',
    'seq', 'shield', 'abort', 'deferred', 'abort_cid', 'retry_at', 'last_error', 'settled', 'request', 'answer', 'claims')
  return { room = room, was = v, forget = nil, phase = v[1] or nil, mode = v[2] or nil, owner = v[3] or nil,
    ready = v[4] or nil, processing = v[5] or nil, attempt = v[6] or nil, claimed_at = v[7] or nil, cycle = v[8] or nil,
    seq = v[9] or nil, shield = v[10] or nil, abort = v[11] or nil, deferred = v[12] or nil, abort_cid = v[13] or nil,
    retry_at = v[14] or nil, last_error = v[15] or nil, settled = v[16] or nil, request = v[17] or nil,
    answer = v[18] or nil, claims = v[19] or nil }
end

local function save(h)
  local sets, dels, was = {}, {}, h.was
  local set, del = 0, 0
  for i = 1, #FIELDS do
    local field = FIELDS[i]
    local value = h[field]
    if value ~= (was[i] or nil) then
      if value == nil then
        del = del + 1
        dels[del] = field
      else
        sets[set + 1], sets[set + 2] = field, value
        set = set + 2
      end
    end
  end
  if set > 0 then call('HSET', room_key(h.room), unpack(sets)) end
  if del > 0 then call('HDEL', room_key(h.room), unpack(dels)) end
  if h.cycle ~= (was[CYCLE] or nil) then
    if h.cycle then call('ZADD', PROCESSING, h.cycle, h.room) else call('ZREM', PROCESSING, h.room) end
  end
  if h.forget then call('EXPIRE', room_key(h.room), FORGET_S)
  else
    if not was[PHASE] then call('PERSIST', room_key(h.room)) end
    -- From one cycle to the next nothing new is said: the room is as active as when it was claimed.
    if not (h.cycle and was[CYCLE]) then call('ZADD', ROOMS, now_ms, h.room) end
  end
end

-- Takes the room's entry out of the ready stream: nobody owns the room any more.
local function unready(h)
  if h.ready then
    call('XACK', READY, GROUP, h.ready)
    call('XDEL', READY, h.ready)
  end
  h.ready, h.owner, h.claims = nil, nil, nil
end

-- The ticket of the last cycle that has ended, for outputs and events of its message. One that died with its worker has a mark:
-- what that worker still sends for it was not answered before, and is fenced.
local function last_ticket(h) return h.settled and h.settled:match('^%d+') or '0' end

local function end_cycle(h, died)
  if h.cycle then h.settled = died and h.cycle .. '!' or h.cycle end
  h.cycle, h.seq, h.shield, h.abort, h.deferred, h.abort_cid, h.claimed_at = nil, nil, nil, nil, nil, nil, nil
end

-- The message in processing has ended, in whatever way: it leaves the queue.
local function end_message(h, id)
  call('XDEL', messages_key(h.room), id)
  call('UNLINK', room_key(h.room) .. ':steps')
  h.processing, h.attempt, h.retry_at, h.last_error = nil, nil, nil, nil
end

-- Says where a room without a live cycle waits: in `ready` with an entry, in `held`, or nowhere.
-- Everything that leaves a room without a cycle comes through here, which is what keeps invariant 7.
local function park(h)
  if call('XLEN', messages_key(h.room)) == 0 then
    unready(h)
    call('SREM', HELD, h.room)
    call('UNLINK', messages_key(h.room), room_key(h.room) .. ':steps')
    h.phase, h.processing, h.attempt, h.retry_at, h.last_error = nil, nil, nil, nil, nil
    h.forget = not h.mode
    if h.forget then
      if call('EXISTS', room_key(h.room) .. ':state') == 0 then call('ZREM', ROOMS, h.room)
      else call('ZADD', ROOMS, now_ms, h.room) end -- idle from now on
    end
  elseif h.mode or agent_mode() then
    unready(h)
    call('SADD', HELD, h.room)
    h.phase = 'held'
  else
    if h.phase == 'held' then call('SREM', HELD, h.room) end
    h.phase = h.retry_at and 'backoff' or 'queued'
    if not h.ready then h.ready = call('XADD', READY, '*', 'room', h.room) end
  end
end

-- An interrupted message is consumed: it is never replayed. `code` is what became of the agent's code, where that is known.
local function consume(h, id, ticket, seq, code)
  output(h.room, 'aborted', id, ticket, seq, '', 'mode', 'interrupt')
  cycle_event('cycle.interrupted', h, id, ticket, 'code', code or '')
  end_message(h, id)
end

local function next_seq(h) return (tonumber(h.seq) or 0) + 1 end

-- How the live cycle has to end, if that is decided: a shield that ends with its cycle does not hold an interrupt up.
local function aborted(h) return h.abort or (h.deferred == 'interrupt' and 'interrupt') or nil end

-- Why an effect of this ticket is refused: `fenced`, `interrupt` or `stop`; nil when the cycle is live.
local function refused(h, ticket)
  if h.cycle ~= ticket then return 'fenced' end
  return h.abort
end

-- Requests that may be sent twice. `request` is the one answered last; `answer` says what it got when
-- that was no grant.

local function remember(h, request, answer)
  h.request, h.answer = request, answer
end

local function grant_of(h)
  local entry = call('XRANGE', messages_key(h.room), h.processing, h.processing)[1]
  local state = call('GET', room_key(h.room) .. ':state')
  return { 'grant', h.processing, h.cycle, h.attempt, h.abort or '', h.claimed_at, entry and entry[2] or {}, state }
end

-- The answer that this request got before, or nil when it is new.
local function answered(h, request)
  if h.request == request then
    if h.answer then
      local word, rest = h.answer:match('^(%S+) ?(.*)$')
      return { word, rest }
    end
    return h.cycle and grant_of(h) or { 'lost', '' }
  end
  if h.settled == request then return { 'settled', '' } end
  return nil
end

local function dead_letter(h, id, fields, error)
  local ticket = last_ticket(h)
  local own, said = {}, { room = h.room, message = id, attempts = h.attempt or 0, error = error, died_at = now }
  for i = 1, math.min(#fields, FIELDS_MAX), 2 do -- a message that was written by hand may have any, and too many
    if not said[fields[i]] then own[#own + 1], own[#own + 2] = fields[i], fields[i + 1] end
  end
  call('XADD', G .. ':dead', '*', 'room', h.room, 'message', id, 'attempts', said.attempts, 'error', error,
    'died_at', now, unpack(own))
  output(h.room, 'dead', id, ticket, 0, '', 'error', error)
  cycle_event('message.dead', h, id, ticket, 'attempts', h.attempt or 0, 'error', error)
  end_message(h, id)
end

-- A cycle that is still marked live when its room is claimed anew has died with its worker.
local function bury(h)
  local id, ticket, seq = h.processing, h.cycle, next_seq(h)
  local abort = aborted(h)
  if abort ~= 'interrupt' then
    h.last_error = abort and h.last_error or 'the worker died'
    if abort then
      h.attempt = h.attempt - 1
      output(h.room, 'aborted', id, ticket, seq, '', 'mode', 'stop')
      cycle_event('cycle.stopped', h, id, ticket)
    else
      output(h.room, 'failed', id, ticket, seq, '', 'error', h.last_error)
      cycle_event('cycle.crashed', h, id, ticket, 'attempt', h.attempt)
    end
  end
  end_cycle(h, true)
  if abort == 'interrupt' then consume(h, id, ticket, seq) end
end

-- Whether something of this version was written by a newer greenroom than one that knows versions up to `known`.
local function too_new(version, known) return (tonumber(version) or 0) > known end
local function version_of(fields)
  for i = 1, #fields, 2 do
    if fields[i] == 'v' then return fields[i + 1] end
  end
  return 1
end

-- A worker is too old for what it has found here: the next try is in a while. What follows has to give the room back, so that
-- it is for any worker. Said once only, however often it is tried: `news` is for who is to log it.
local function put_off(h, id, why, wait)
  if h.last_error ~= why then
    cycle_event('message.newer', h, id, last_ticket(h), 'error', why)
    h.news = why
  end
  h.last_error = why
  if wait > 0 then h.retry_at = iso(now_ms + wait) end
end

-- Gives the room back for anyone. Ends with save(): nothing may follow it.
local function give_back(h, request)
  unready(h)
  park(h)
  remember(h, request, 'released ' .. (h.news or ''))
  save(h)
  return { 'released', h.news or '' }
end

-- Grants the room's next message, or says why not. Ends with save(): nothing may follow it.
-- ask: request, worker (nil keeps the owner), max_attempts, shielded ('1' for a non-interruptible agent).
local function take(h, ask)
  while true do
    local head = call('XRANGE', messages_key(h.room), '-', '+', 'COUNT', 1)[1]
    local answer
    if not head or h.mode or agent_mode() then
      park(h)
      answer = head and 'held' or 'empty'
    elseif h.retry_at and ms_of(h.retry_at) > now_ms then
      h.phase = 'backoff'
      answer = 'backoff ' .. (ms_of(h.retry_at) - now_ms)
    elseif too_new(version_of(head[2]), VERSION) then
      put_off(h, head[1], 'written by a newer greenroom: upgrade this worker', TOO_NEW_MS)
      return give_back(h, ask.request)
    elseif (tonumber(h.attempt) or 0) >= tonumber(ask.max_attempts) then
      dead_letter(h, head[1], head[2], h.last_error or '')
    else
      local ticket = tick()
      h.phase, h.processing, h.attempt = 'processing', head[1], tostring((tonumber(h.attempt) or 0) + 1)
      h.cycle, h.claimed_at, h.retry_at = string.format('%d', ticket), now, nil
      h.owner = ask.worker or h.owner
      h.shield = ask.shielded == '1' and '1' or nil
      remember(h, ask.request, nil)
      save(h)
      return { 'grant', h.processing, h.cycle, h.attempt, '', now, head[2], false }
    end
    if answer then
      remember(h, ask.request, answer)
      save(h)
      local word, rest = answer:match('^(%S+) ?(.*)$')
      return { word, rest }
    end
  end
end

-- Whether the worker that ran this cycle has a newer incarnation, which joined since: both numbers are of one clock, and so have as
-- many digits. Asked when much is written already, so that nothing may fail here.
local function superseded(h, ticket)
  if not h.owner then return false end
  local newest = redis.pcall('HGET', G .. ':worker:' .. h.owner, 'incarnation')
  return type(newest) == 'string' and #newest == #ticket and newest > ticket
end

-- After a cycle: take the next message, or (draining, or others wait, or the room was adopted meanwhile and so has no owner, or
-- its worker is superseded, and what it took would be charged as a crash) give the room back for anyone.
local function go_on(h, ask)
  if ask.next == '1' and h.owner and not superseded(h, ask.request) then return take(h, ask) end
  return give_back(h, ask.request)
end
