-- Drops a dead letter for good, on purpose.
-- ARGV: dead letter's entry id, request, how long it is remembered, in seconds, by
-- Answers: {'dropped'} | {'unknown'}
-- Events: message.dropped
local entry_id, request, ttl, by = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local request_key = G .. ':seen:' .. request
local before = call('GET', request_key)
if before then return { before, '' } end
local entry = call('XRANGE', G .. ':dead', entry_id, entry_id)[1]
if not entry then return { 'unknown', '' } end

local fields = {}
for i = 1, #entry[2], 2 do fields[entry[2][i]] = entry[2][i + 1] end
call('XDEL', G .. ':dead', entry_id)
event('message.dropped', 'room', fields.room or '', 'message', fields.message or '', 'dead', entry_id,
  'error', fields.error or '', 'by', by)
call('SET', request_key, 'dropped', 'EX', ttl)
return { 'dropped', '' }
