-- Starts work on a room that the dispatcher handed to this worker.
-- ARGV: room, worker, incarnation, ready id, request, max attempts, shielded
-- Answers: a grant | {'empty'} | {'held'} | {'backoff', ms} | {'lost'} (not this worker's) | {'stale'} (not the room's
-- entry any more: dropped) | {'superseded'} (a newer incarnation of this worker exists) | {'released', why or ''} (its
-- next message was written by a newer greenroom: the room is given back for a worker that can read it; why, the first time)
-- A grant: {'grant', message id, ticket, attempt, abort or '', claimed at, message fields, state or nil}
-- After a look at the queue the answer ends with the names of the events, if there were any.
-- Events: cycle.crashed, cycle.stopped, cycle.interrupted, message.dead, of the cycle found there; message.newer
local room, worker, incarnation, ready, request = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

local current = whole(call('HGET', G .. ':worker:' .. worker, 'incarnation'))
if current and current > tonumber(incarnation) then return { 'superseded', string.format('%.0f', current) } end
local h = load(room)
local before = answered(h, request)
if before then return before end
if #call('XPENDING', READY, GROUP, ready, ready, 1, worker) == 0 then return { 'lost', '' } end
if h.ready ~= ready then
  call('XACK', READY, GROUP, ready)
  call('XDEL', READY, ready)
  return { 'stale', '' }
end
-- The requests that claimed by this ready entry, newest first: one of them that arrives once more, late, must neither bury the
-- cycle that is live now nor take a grant that nobody waits for.
local claims = h.claims or ''
if (' ' .. claims .. ' '):find(' ' .. request .. ' ', 1, true) then return { 'lost', '' } end
h.claims = (request .. ' ' .. claims):sub(1, CLAIMS_BYTES)
h.owner = worker -- also of a room that is told to wait, and in the events of what is found here
if h.cycle then bury(h) end
local answer = take(h, { request = request, worker = worker, max_attempts = ARGV[6], shielded = ARGV[7] })
if answer[1] == 'grant' then answer[8] = call('GET', room_key(room) .. ':state') end
return told(answer)
