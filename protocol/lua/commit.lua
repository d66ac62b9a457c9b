-- Ends a cycle that did its work: reply, state, removal from the queue and clearing of the steps in one act.
-- ARGV: room, ticket, next ('1' take the next message, '' give the room back), max attempts, shielded,
--       state ('=' keep, '-' delete, '+…' set to the bytes after the plus), reply body
-- Answers: {'fenced'} | {'interrupt'} | {'stop'} (aborted: settle it) | {'settled'} (sent again; what came next is no
-- longer this worker's) | {'released'} | what was taken, as for claim. When it has committed, the answer ends with the names of
-- the events.
-- Events: cycle.committed; interrupt.lapsed when the shield outlived a deferred interrupt.
local room, ticket, state = ARGV[1], ARGV[2], ARGV[6]
local h = load(room)
local before = answered(h, ticket)
if before then return before end
local why = refused(h, ticket)
if why then return { why, '' } end

local id = h.processing
if state:sub(1, 1) == '+' then call('SET', room_key(room) .. ':state', state:sub(2))
elseif state == '-' then call('DEL', room_key(room) .. ':state') end
output(room, 'reply', id, ticket, next_seq(h), ARGV[7])
cycle_event('cycle.committed', h, id, ticket, 'attempt', h.attempt)
if h.deferred == 'interrupt' then cycle_event('interrupt.lapsed', h, id, ticket) end
end_message(h, id)
end_cycle(h)
return told(go_on(h, { request = ticket, next = ARGV[3], max_attempts = ARGV[4], shielded = ARGV[5] }))
