-- What a relay is to hand over next in a room; before that, it is done with what it was given last.
-- The relay's place is the output that it was given, or is to be given, and moves on only from there: a request that is sent
-- again finds it moved, and gets the same answer. It is never past an output that was not handed over, rejected or withheld.
-- ARGV: relay, token, room, the output that it is done with or '', why that was rejected or ''
-- Answers: {'output', id, fields} | {'more'} (that many were withheld: ask again) | {'empty'} | {'lost'} (not the lease's)
-- Events: output.rejected
local name, token, room, done, why = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local PASS_MOST = 100 -- outputs withheld in one call: other clients wait for it

if call('GET', lease_key(name)) ~= token then return { 'lost', '' } end
local place = call('HGET', undelivered_key(name), room)
if not place then return { 'empty', '' } end
local from = place
if done == place then
  from = '(' .. place
  if why ~= '' then event('output.rejected', 'room', room, 'output', done, 'relay', name, 'error', why) end
end

-- A chunk of a cycle that was aborted does not go out any more, but what an interrupted one says at its end does.
local live, abort = unpack(call('HMGET', room_key(room), 'cycle', 'abort'))
local function is_withheld(row)
  if row[2] ~= 'chunk' or row[11] == 'closing' then return false end
  local ticket = row[6]
  return (ticket == live and abort) or call('SISMEMBER', aborted_key(room), ticket) == 1
end

local last = place
for _ = 1, PASS_MOST do
  local entry = call('XRANGE', outbox_key(room), from, '+', 'COUNT', 1)[1]
  if not entry then
    let_go(name, room)
    return { 'empty', '' }
  end
  last = entry[1]
  if not is_withheld(entry[2]) then
    if last ~= place then call('HSET', undelivered_key(name), room, last) end
    return { 'output', last, entry[2] }
  end
  from = '(' .. last
end
call('HSET', undelivered_key(name), room, last)
return { 'more', '' }
