-- Sends chunks of a live cycle. The chunks are numbered from `seq`: those that are there already (the request was
-- sent again) are passed over.
-- ARGV: room, ticket, seq of the first chunk, body…
-- Answers: {'ok', seq of the last chunk there} | {'fenced'} | {'interrupt'} | {'stop'}
local room, ticket, first = ARGV[1], ARGV[2], tonumber(ARGV[3])
local h = load(room)
local why = refused(h, ticket)
if why then return { why, '' } end

local last = tonumber(h.seq) or 0
for i = 4, #ARGV do
  local seq = first + i - 4
  if seq > last then
    output(room, 'chunk', h.processing, ticket, seq, ARGV[i])
    last = seq
  end
end
call('HSET', room_key(room), 'seq', last)
return { 'ok', last }
