-- Moves rooms of dead workers (no heartbeat) into this worker's pending list. The dispatcher then finds them there,
-- as it finds its own after a restart.
-- ARGV: worker, how many at the most
-- Answers: {'ok', how many were moved}
-- Events: room.adopted
local worker, most = ARGV[1], tonumber(ARGV[2])
local moved = 0

local function is_dead(other) return other ~= worker and call('EXISTS', G .. ':worker:' .. other) == 0 end
local function owns_nothing(other) return #call('XPENDING', READY, GROUP, '-', '+', 1, other) == 0 end

-- No owner until this worker claims: a cycle that is live in spite of the lost lease may end, and takes no next message.
local function disown(room, ready)
  if call('HGET', room_key(room), 'ready') == ready then call('HDEL', room_key(room), 'owner') end
end

local function adopt(other)
  local pending = moved < most and call('XPENDING', READY, GROUP, '-', '+', most - moved, other) or {}
  for _, row in ipairs(pending) do
    local entry = call('XCLAIM', READY, GROUP, worker, 0, row[1])[1]
    if entry then
      local room = entry[2][2]
      safely(room, disown, room, row[1])
      event('room.adopted', 'room', room, 'worker', worker, 'from', other)
    else call('XACK', READY, GROUP, row[1]) end
    moved = moved + 1
  end
end

-- The group's own list of who may own rooms: a worker whose lease ran out may read a ready entry once more after it was
-- taken off G:workers, and end before it finds out.
for _, consumer in ipairs(call('XINFO', 'CONSUMERS', READY, GROUP)) do
  local other = consumer[2]
  if is_dead(other) then
    adopt(other)
    if owns_nothing(other) then call('XGROUP', 'DELCONSUMER', READY, GROUP, other) end
  end
end
for _, other in ipairs(call('SMEMBERS', G .. ':workers')) do
  if is_dead(other) and owns_nothing(other) then call('SREM', G .. ':workers', other) end
end
return { 'ok', moved }
