-- Counts what waits, for metrics, and changes nothing. Of rooms with work it looks at some of each kind only: other clients wait
-- for it. The kinds: owned by a worker, next in line for one, held.
-- ARGV: how many rooms of each kind are looked at
-- Answers: {now in µs, the agent's mode or '', rooms, rooms owned, in line, held, with a live cycle, dead letters,
-- of each kind: rooms looked at, messages there without a live cycle, the id of the oldest of these or '0'}
-- Events: none
local most = tonumber(ARGV[1])
local BODIES_BYTES = 4194304 -- an entry comes with its body: no more is looked at than this, and the body that goes beyond it
local bodies = 0

-- The messages of a room on which no cycle works, and when the oldest of them was accepted, if there is one and its id is of the
-- logical clock's: one that somebody else has appended may have any, such as the time in ms.
local function look(room)
  local processing, live = unpack(call('HMGET', room_key(room), 'processing', 'cycle'))
  local waiting = call('XLEN', messages_key(room)) - (live and 1 or 0)
  if waiting <= 0 then return 0 end
  local id = not live and processing or nil
  if not id then
    local head = call('XRANGE', messages_key(room), live and '(' .. processing or '-', '+', 'COUNT', 1)[1]
    id = head[1]
    bodies = bodies + #head[2][#head[2]]
  end
  local at = whole(id:match('^(%d+)-0$'))
  return waiting, at and at > now_us / 2 and at or nil
end

local function look_at(names)
  local found = { rooms = 0, messages = 0, oldest = 0 }
  for _, room in ipairs(names) do
    if bodies > BODIES_BYTES then break end
    local fine, waiting, at = pcall(look, room)
    if fine then -- else its record is not what scripts write: the others are told all the same
      found.rooms, found.messages = found.rooms + 1, found.messages + waiting
      if at and (found.oldest == 0 or at < found.oldest) then found.oldest = at end
    end
  end
  return found
end

local function rooms_of(entries)
  local names = {}
  for i = 1, #entries do names[i] = entries[i][2][2] end
  return names
end

local ready, owned, last = call('XLEN', READY), 0, '0-0'
if ready > 0 then
  for _, group in ipairs(call('XINFO', 'GROUPS', READY)) do
    if group[2] == GROUP then owned, last = group[6], group[8] end
  end
end
local kinds = {
  look_at(rooms_of(call('XRANGE', READY, '-', last, 'COUNT', most))),
  look_at(rooms_of(call('XRANGE', READY, '(' .. last, '+', 'COUNT', most))),
  look_at(call('SRANDMEMBER', HELD, most)),
}
local answer = { string.format('%d', now_us), agent_mode() or '', call('ZCARD', ROOMS), owned, ready - owned,
  call('SCARD', HELD), call('ZCARD', PROCESSING), call('XLEN', G .. ':dead') }
for _, found in ipairs(kinds) do
  answer[#answer + 1], answer[#answer + 2] = found.rooms, found.messages
  answer[#answer + 1] = string.format('%d', found.oldest)
end
return answer
