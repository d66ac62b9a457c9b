-- Drops what is over its limit and that no other script trims: of the control stream what every live worker has read, the
-- oldest dead letters, and rooms that were idle for too long. Few at a time: other clients wait for it.
-- ARGV: how many idle rooms to pass over (those that an earlier call of this round has kept)
-- Answers: {'ok' | 'more' (ask again), rooms to pass over then, [dead letter, room, message, error, …], rooms forgotten}
-- Events: message.dropped, room.forgotten
local passed = tonumber(ARGV[1])
local MOST, BODIES_BYTES = 100, 4194304

-- The lowest place in the control stream that a live worker has told; nil if one has told none, or no worker lives: what was
-- written by hand waits for whoever comes.
local function read_by_all()
  local lowest, lowest_ms, lowest_seq = nil, nil, nil
  for _, worker in ipairs(call('SMEMBERS', G .. ':workers')) do
    local key = G .. ':worker:' .. worker
    if call('PTTL', key) > 0 and call('TYPE', key).ok == 'hash' then -- what lasts for ever is no heartbeat
      local ms, seq = (call('HGET', key, 'control') or ''):match('^(%d+)-(%d+)$')
      if not ms then return nil end
      ms, seq = tonumber(ms), tonumber(seq)
      if not lowest or ms < lowest_ms or (ms == lowest_ms and seq < lowest_seq) then
        lowest, lowest_ms, lowest_seq = string.format('%.0f-%.0f', ms, seq), ms, seq
      end
    end
  end
  return lowest
end

local function trim_control()
  local control, most = G .. ':control', kept('control')
  if call('XLEN', control) <= most then return end
  local lowest = read_by_all()
  if not lowest then return end
  -- Those that somebody has not read are the newest: fewer than the limit, and none of them is beyond it.
  if #call('XRANGE', control, '(' .. lowest, '+', 'COUNT', most + 1) <= most then
    call('XTRIM', control, 'MAXLEN', '~', most, 'LIMIT', 0)
  end
end

local dropped = {}
local function drop_dead()
  local dead, bytes = G .. ':dead', 0
  local over = call('XLEN', dead) - kept('dead')
  for _ = 1, math.min(over, MOST) do
    if bytes > BODIES_BYTES then return true end
    local entry = call('XRANGE', dead, '-', '+', 'COUNT', 1)[1] -- it comes with its body
    local fields = {}
    for i = 1, #entry[2], 2 do fields[entry[2][i]] = entry[2][i + 1] end
    bytes = bytes + #(fields.body or '')
    local room, message, error = fields.room or '', fields.message or '', fields.error or ''
    call('XDEL', dead, entry[1])
    event('message.dropped', 'room', room, 'message', message, 'dead', entry[1], 'error', error)
    for _, value in ipairs({ entry[1], room, message, error }) do dropped[#dropped + 1] = value end
  end
  return over > MOST
end

-- Whether anything of the room is under way: it has work, a mode, or outputs for a relay.
local function is_in_use(room)
  local h = load(room)
  if h.phase or h.mode or h.cycle or h.processing or h.ready or call('XLEN', messages_key(room)) > 0 then return true end
  for _, relay in ipairs(relays()) do
    if call('HEXISTS', undelivered_key(relay), room) == 1 then return true end
  end
  return false
end

local forgotten = 0
local function forget_rooms()
  local idle_s = kept('idle_rooms_s')
  if not idle_s then return false end
  local found = call('ZRANGEBYSCORE', ROOMS, '-inf', string.format('%.0f', now_ms - idle_s * 1000), 'WITHSCORES', 'LIMIT', passed,
    MOST)
  for i = 1, #found, 2 do
    local room = found[i]
    local fine, used = pcall(is_in_use, room)
    if used or not fine then passed = passed + 1 -- or it has a record that scripts did not write
    else
      call('UNLINK', room_key(room) .. ':state')
      call('ZREM', ROOMS, room)
      event('room.forgotten', 'room', room, 'idle_since', iso(tonumber(found[i + 1])))
      forgotten = forgotten + 1
    end
  end
  return #found == MOST * 2
end

trim_control()
local dead_left, rooms_left = drop_dead(), forget_rooms()
return { (dead_left or rooms_left) and 'more' or 'ok', passed, dropped, forgotten }
