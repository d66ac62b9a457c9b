-- Applies a signal: changes the durable state, marks live cycles, appends to the control stream.
-- ARGV: mode, cid, message id or '', by, reason, raw (the id of a hand-written entry, or ''), count, room…
--       (count 0: everywhere, that is all rooms of the agent, also those that do not exist yet)
-- Answers: {'ok', receipt} | {'conflict', receipt of that cid} | {'passed'} (hand-written, handled before) |
-- {'unreadable', error} (hand-written, for a room whose record is not what scripts write: not applied)
-- The receipt is JSON: mode, message, everywhere, by, reason, cid, upto, at, receipts [[room, outcome, message], …].
-- Events: signal.applied; signal.deferred for each cycle whose shield defers it; cycle.interrupted of a message without a
-- live cycle; signal.malformed for {'unreadable'}; room.unreadable for each such room that a signal to all passes over
local mode, cid, only, by, reason, raw, count = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6], tonumber(ARGV[7])
local rooms = {}
for i = 8, #ARGV do rooms[i - 7] = ARGV[i] end -- unpack would fail from 8,000 rooms on

if raw ~= '' and handled(raw) then return { 'passed', '' } end

local target = mode .. ' ' .. only .. ' ' .. table.concat(rooms, ' ')
local signal_key = G .. ':signal:' .. cid
local known = call('GET', signal_key)
if known then
  if cjson.decode(known).target ~= target then return { 'conflict', known } end
  return { 'ok', known }
end

local upto = call('HGET', G, 'clock') or '0'
local receipts = {}
local whole = agent_mode() -- the agent's mode before this signal

local function set_mode(key)
  call('HSET', key, 'mode', mode, 'mode_by', by, 'mode_at', now, 'mode_reason', reason, 'mode_cid', cid)
  if key == G then of_agent().mode = mode end
end
local function clear_mode(key)
  call('HDEL', key, 'mode', 'mode_by', 'mode_at', 'mode_reason', 'mode_cid')
  if key == G then of_agent().mode = nil end
end

-- A stop or pause that is there already is not weakened and not set again.
local function stands(current) return current == 'stop' or current == mode end

-- The first abort of a cycle wins; a shield defers it.
local function abort(h)
  if h.abort or h.deferred then return 'already' end
  h.abort_cid = cid
  if not h.shield then
    h.abort = mode
    return 'applied'
  end
  h.deferred = mode
  cycle_event('signal.deferred', h, h.processing, h.cycle, 'mode', mode, 'cid', cid)
  return 'deferred'
end

local function interrupt(room)
  local h = load(room)
  local id = h.processing
  if whole == 'stop' or h.mode == 'stop' then return 'held', id end
  if not id or (only ~= '' and only ~= id) then return 'idle' end
  local outcome = 'applied'
  if h.cycle then outcome = abort(h)
  else
    consume(h, id, last_ticket(h), 0)
    park(h)
  end
  save(h)
  return outcome, id
end

-- Holds a room that has no live cycle, aborts one that is stopped: h.mode is set, or the agent's is.
local function hold(h)
  local outcome = 'applied'
  if h.cycle then
    if mode == 'stop' then abort(h) end
    if mode == 'stop' and h.deferred then outcome = 'deferred' end
  else park(h) end
  save(h)
  return outcome
end

local function halt(room)
  local h = load(room)
  if stands(h.mode) then return 'already', h.processing end
  set_mode(room_key(room))
  h.mode, h.was[MODE] = mode, mode
  return hold(h), h.processing
end

local function play(room)
  local h = load(room)
  if not h.mode then return 'already', h.processing end
  clear_mode(room_key(room))
  h.mode, h.was[MODE] = nil, false
  if not h.cycle then park(h) end
  save(h)
  return 'applied', h.processing
end

local apply = { interrupt = interrupt, stop = halt, pause = halt, play = play }

local function note(room, outcome, id)
  receipts[#receipts + 1] = { room, outcome, id or '' }
  call('XADD', G .. ':control', '*', 'mode', mode, room == '' and 'everywhere' or 'room',
    room == '' and '1' or room, 'cid', cid, 'by', by, 'reason', reason, 'message', only, 'upto', upto, 'outcome', outcome)
end

-- Every room that has a ready entry, and so may have to be held.
local function ready_rooms()
  local found = {}
  for _, entry in ipairs(call('XRANGE', READY, '-', '+')) do found[#found + 1] = entry[2][2] end
  return found
end

-- For signals to all: what is to be noted of a room, if anything.
local function hold_with_all(room)
  local h = load(room)
  local live = h.cycle
  local outcome = hold(h)
  if live and mode == 'stop' then return outcome, h.processing end
end

local function resume(room)
  local h = load(room)
  if not h.cycle then park(h) end
  save(h)
end

local function everywhere()
  if mode == 'interrupt' then
    note('', whole == 'stop' and 'held' or 'applied')
    local candidates = ready_rooms()
    for _, room in ipairs(call('SMEMBERS', HELD)) do candidates[#candidates + 1] = room end
    for _, room in ipairs(candidates) do
      local outcome, id = safely(room, interrupt, room)
      if outcome and outcome ~= 'idle' and outcome ~= 'held' then note(room, outcome, id) end
    end
  elseif mode == 'play' then
    note('', whole and 'applied' or 'already')
    clear_mode(G)
    for _, room in ipairs(whole and call('SMEMBERS', HELD) or {}) do safely(room, resume, room) end
  elseif stands(whole) then note('', 'already')
  else
    set_mode(G)
    note('', 'applied')
    for _, room in ipairs(ready_rooms()) do
      local outcome, id = safely(room, hold_with_all, room)
      if outcome then note(room, outcome, id) end
    end
  end
end

local function run()
  if count == 0 then everywhere() end
  if count > 1 then
    for _, room in ipairs(rooms) do load(room) end -- one that cannot be read has the signal refused before it has reached any
  end
  for _, room in ipairs(rooms) do note(room, apply[mode](room)) end
end

if raw == '' then run()
else
  -- Nobody waits for the answer: it is said here, once, as of a signal that is malformed.
  local fine, failure = pcall(run)
  if not fine then
    failure = tostring(type(failure) == 'table' and failure.err or failure)
    event('signal.malformed', 'entry', raw, 'error', failure)
    return { 'unreadable', failure }
  end
end
local receipt = cjson.encode({ mode = mode, message = only, target = target, everywhere = count == 0, by = by, reason = reason,
  cid = cid, upto = upto, at = now, receipts = receipts })
call('SET', signal_key, receipt, 'EX', kept('receipts_s'))
event('signal.applied', 'mode', mode, 'cid', cid, 'by', by, 'rooms', count == 0 and 'everywhere' or table.concat(rooms, ' '))
return { 'ok', receipt }
