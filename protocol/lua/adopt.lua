-- Moves rooms of dead workers (no heartbeat) into this worker's pending list. The dispatcher then finds them there,
-- as it finds its own after a restart.
-- ARGV: worker, how many at the most
-- Answers: {'ok', how many were moved}
-- Events: room.adopted
local worker, most = ARGV[1], tonumber(ARGV[2])
local moved = 0
for _, other in ipairs(call('SMEMBERS', G .. ':workers')) do
  if other ~= worker and call('EXISTS', G .. ':worker:' .. other) == 0 then
    local pending = moved < most and call('XPENDING', READY, GROUP, '-', '+', most - moved, other) or {}
    for _, row in ipairs(pending) do
      local entry = call('XCLAIM', READY, GROUP, worker, 0, row[1])[1]
      if entry then
        local room = entry[2][2]
        if call('HGET', room_key(room), 'ready') == row[1] then call('HSET', room_key(room), 'owner', worker) end
        event('room.adopted', 'room', room, 'worker', worker, 'from', other)
      else call('XACK', READY, GROUP, row[1]) end
      moved = moved + 1
    end
    if #call('XPENDING', READY, GROUP, '-', '+', 1, other) == 0 then
      call('XGROUP', 'DELCONSUMER', READY, GROUP, other)
      call('SREM', G .. ':workers', other)
    end
  end
end
return { 'ok', moved }
